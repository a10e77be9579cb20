"""One dial, three spellings: precedence, types, and refusals that name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ByteSize, Field

from engine.errors import StartError
from gateway.__main__ import cli
from gateway.config import EngineOptions, Http, Limits, ModelOptions
from gateway.key_file import with_file_keys
from gateway.options import options_of, read, read_file


class Dials(BaseModel):
    """A few dials. Nothing else."""

    port: int = Field(1, ge=0, description="where")
    size: ByteSize | None = Field(None, description="how much")
    names: tuple[str, ...] = Field((), description="which")
    fast: bool = Field(True, description="whether")
    place: Path = Field(Path("~/there"), description="where it lies")
    wait: float | None = Field(None, description="how long")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), is_eager=True, expose_value=False,
              callback=lambda context, _, path: path and setattr(context, "default_map", read_file(path, Dials)))  # fmt: skip
@options_of(Dials)
def show(**values: Any) -> None:
    click.echo(read(Dials, values).model_dump_json())


def run(*args: str, env: dict[str, str] | None = None, expect: int = 0) -> str:
    result = CliRunner().invoke(show, args, env={"HOME": "/home/me", **(env or {})})
    assert result.exit_code == expect, result.output
    return result.output


def test_defaults() -> None:
    assert run() == '{"port":1,"size":null,"names":[],"fast":true,"place":"/home/me/there","wait":null}\n'


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 2\nsize: 1KiB\nnames: [a, b]\nfast: false\n")
    env = {"HEADWATER_PORT": "3", "HEADWATER_NAMES": "x y"}
    assert (
        run("--config", str(file))
        == '{"port":2,"size":1024,"names":["a","b"],"fast":false,"place":"/home/me/there","wait":null}\n'
    )
    assert '"port":3,"size":1024,"names":["x","y"]' in run("--config", str(file), env=env)
    assert '"port":4' in run("--config", str(file), "--port", "4", env=env)
    assert '"names":["z"]' in run("--config", str(file), "--name", "z", env=env)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--port", "many"), "--port"),
        (("--port", "-1"), "port: "),
        (("--size", "lots"), "size: "),
        (("--prot", "1"), "--prot"),
    ],
)
def test_a_wrong_value_is_named(args: tuple[str, ...], complaint: str) -> None:
    assert complaint in run(*args, expect=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot: 1\n", "unknown option 'prot'"),
        ("- a\n", "expected a mapping"),
        ("port: [\n", "not YAML"),
        ("port: true\n", "c.yaml: port: expected a whole number"),
        ("port: 1.5\n", "c.yaml: port: expected a whole number"),
        ("port: [1]\n", "c.yaml: port: expected a whole number"),
        ("size: true\n", "c.yaml: size: expected a size such as 2GiB"),
        ("wait: true\n", "c.yaml: wait: expected a number"),
        ("fast: 2\n", "c.yaml: fast: expected true or false"),
        ("place: 1\n", "c.yaml: place: expected a string"),
        ("names: {a: b}\n", "c.yaml: names: expected a list of strings"),
        ("names: [a, 1]\n", "c.yaml: names: expected a list of strings"),
        ("names: true\n", "c.yaml: names: expected a list of strings"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert complaint in run("--config", str(file), expect=2)


def test_a_file_may_name_one_value_for_a_list_and_null_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("names: abc\nport: null\nwait: 2e-3\nsize: 64\n")
    shown = run("--config", str(file))
    assert '"port":1,"size":64,"names":["abc"]' in shown
    assert '"wait":0.002' in shown


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    assert f"{file}: No such file or directory" in run("--config", str(file), expect=2)


def test_a_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nnames: [a\n")
    complaint = run("--config", str(file), expect=2)
    assert f"{file}: not YAML: expected ',' or ']'" in complaint
    assert "in line 3" in complaint
    assert "unicode" not in complaint


@pytest.mark.parametrize(
    ("args", "env", "file"),
    [((), {}, "{}"), (("--place=~/there",), {}, "{}"), ((), {"HEADWATER_PLACE": "~/there"}, "{}"), ((), {}, "place: ~/there")],
)  # fmt: skip
def test_a_place_may_be_below_home(
    tmp_path: Path, args: tuple[str, ...], env: dict[str, str], file: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(file)
    shown = run("--config", str(config), *args, env={"HOME": str(tmp_path), **env})
    assert f'"place":"{tmp_path}/there"' in shown


class TestWithoutHome:
    """A container's user often has neither HOME nor an entry in the user database."""

    @pytest.fixture(autouse=True)
    def _nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def expanduser(path: Path) -> Path:
            if str(path).startswith("~"):
                raise RuntimeError("Could not determine home directory.")
            return path

        monkeypatch.setattr(Path, "expanduser", expanduser)

    def test_a_place_that_needs_none_is_taken(self) -> None:
        assert '"place":"/srv"' in run("--place", "/srv")

    def test_a_place_that_needs_one_is_named(self) -> None:
        complaint = run(expect=2)
        assert "--place" in complaint
        assert "~/there" in complaint
        assert "no home directory" in complaint


def test_every_dial_of_serve_is_described_and_listed_once() -> None:
    text = CliRunner().invoke(cli, ["serve", "--help"]).output
    for part in (Http, ModelOptions, EngineOptions, Limits):
        for name, field in part.model_fields.items():
            assert field.description, name
            flag = "--" + (
                name if not isinstance(field.get_default(call_default_factory=True), tuple) else name[:-1]
            )
            assert text.count(f"  {flag.replace('_', '-')} ") == 1, name


def test_failpoints_need_test_mode() -> None:
    result = CliRunner().invoke(cli, ["serve", "hash", "--failpoint", "forward_raises=1"])
    assert result.exit_code == 2
    assert "--test-mode" in result.output


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--model-id", "", "model_id: the name of a model cannot be empty"),
        ("--extra-name", " ", "extra_names: the name of a model cannot be empty"),
        *(
            ("--cors-origin", origin, "cors_origins: an origin is")
            for origin in ("", "foo", "foo:80", "http://", "http://a/", "http://A", "http://a:", "http://a b")
        ),
    ],
)
def test_what_could_never_match_is_refused(flag: str, value: str, said: str) -> None:
    result = CliRunner().invoke(cli, ["serve", "hash", flag, value])
    assert result.exit_code == 2
    assert said in result.output


def test_origins() -> None:
    origins = ("*", "http://a", "https://a.example:8443", "http://[::1]:3000", "chrome-extension://abc")
    assert Http(cors_origins=origins).cors_origins == origins


class TestKeyFile:
    def test_keys_join_those_of_the_flags(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text("# team\nsk-one\n\nsk-two  # of two\n")
        assert with_file_keys(Http(api_keys=("sk-zero",), api_key_file=file)).api_keys == (
            "sk-zero",
            "sk-one",
            "sk-two",
        )

    @pytest.mark.parametrize("text", ["", "# none\n", "two words\n", "n\x07ul\n"])
    def test_a_file_without_a_usable_key_does_not_open_the_server(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "keys"
        file.write_text(text)
        with pytest.raises(StartError):
            with_file_keys(Http(api_key_file=file))

    @pytest.mark.parametrize("name", ["api_key_file", "admin_key_file"])
    def test_a_missing_file_is_an_error(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(StartError, match="cannot read"):
            with_file_keys(Http(**{name: tmp_path / "none"}))

    def test_the_admin_key_has_a_file_to_itself(self, tmp_path: Path) -> None:
        file = tmp_path / "admin"
        file.write_text("sk-admin\n")
        read_back = with_file_keys(Http(admin_key_file=file))
        assert (read_back.admin_key, read_back.admin_key_file, read_back.api_keys) == ("sk-admin", None, ())
        with pytest.raises(StartError, match="given twice"):
            with_file_keys(Http(admin_key="sk-other", admin_key_file=file))

    @pytest.mark.parametrize("text", ["", "# none\n", "sk-one\nsk-two\n", "two words\n", "n\x07ul\n"])
    def test_a_file_without_one_usable_admin_key_is_an_error(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "admin"
        file.write_text(text)
        with pytest.raises(StartError, match="admin"):
            with_file_keys(Http(admin_key_file=file))


@pytest.mark.parametrize("name", [n for n, f in Limits.model_fields.items() if f.annotation in (int, float)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_a_mistake(name: str, value: int) -> None:
    with pytest.raises(click.UsageError, match=name):
        read(Limits, {**Limits().model_dump(), name: value})


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_are_finite(value: str) -> None:
    with pytest.raises(click.UsageError, match="request_timeout"):
        read(Limits, {**Limits().model_dump(), "request_timeout": float(value)})
