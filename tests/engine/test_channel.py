import contextlib
import logging
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import channel as channel_module
from engine.channel import MAX_FRAMES_IN_FLIGHT, Channel
from engine.errors import ChannelError, StartError
from engine.request import (
    Abort,
    AskState,
    EngineCounters,
    GenerationRequest,
    RequestFailed,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
    StartFailed,
    StepOutput,
    Submit,
    ToClient,
    ToEngine,
    TokenLogprob,
)

Ends = tuple[Channel[ToEngine, ToClient], Channel[ToClient, ToEngine]]


REQUEST = GenerationRequest(
    request_id="r",
    prompt=[0, 1, 2**31],
    sampling=SamplingParams(max_tokens=3, logit_bias={5: -1.5}, stop_token_ids=(7, 8), logprobs=2),
    namespace=b"\x00\xff",
)
TO_CLIENT = [
    StartFailed("no such model", permanent=True),
    StepOutput(
        deltas=(
            SequenceDelta("r", 0, (1, 2), "stop", (TokenLogprob(1, -0.5, ((1, -0.5), (3, -2.0))),)),
            SequenceDelta("r", 1, (), None, None, (None, TokenLogprob(4, -1.0))),
        ),
        started=(RequestStarted("r", 16, 0.25),),
        failed=(RequestFailed("q", "deadline", "too late"),),
        counters=EngineCounters(steps=3),
    ),
]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    client = Channel.bind(tmp_path / "s")
    engine = Channel.connect(tmp_path / "s")
    engine.send(TO_CLIENT[0])  # the side that binds can send once it was heard from
    client.wait(2)
    assert client.receive() == TO_CLIENT[0]
    yield client, engine
    engine.close()
    client.close()


def received_by(end: Channel[ToClient, ToEngine]) -> ToEngine:
    end.wait(2)
    message = end.receive()
    assert message is not None
    return message


def test_the_side_that_binds_cannot_send_before_anyone_is_there(tmp_path: Path) -> None:
    client = Channel.bind(tmp_path / "s")
    assert not client.send(AskState(1))
    client.close()


def test_what_is_sent_arrives_equal(ends: Ends) -> None:
    client, engine = ends
    for sent in (Submit(REQUEST), Abort(("a", "b"), 1), AskState(7)):
        assert client.send(sent)
        assert received_by(engine) == sent
    for answer in TO_CLIENT:
        assert engine.send(answer)
        client.wait(2)
        assert client.receive() == answer
    assert client.receive() is None


def test_only_this_user_may_connect(ends: Ends, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_a_second_peer_is_turned_away(ends: Ends, tmp_path: Path) -> None:
    client, engine = ends
    intruder = Channel.connect(tmp_path / "s")
    try:
        intruder.send(StartFailed("I am the engine now", permanent=True))
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(tmp_path / "s"))
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        raw.close()
        client.wait(0.2)
        assert client.receive() is None
        client.send(AskState(2))
        assert received_by(engine) == AskState(2)
        assert intruder.receive() is None
    finally:
        intruder._linger = 0
        intruder.close()


def test_frames_that_are_none_of_ours_are_dropped_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = zmq.Context()
    peer = engine.socket(zmq.PAIR)
    client = Channel.bind(tmp_path / "s")
    peer.connect(f"ipc://{tmp_path / 's'}")
    pickled = b"cos\nmkdir\n(S'" + str(tmp_path / "pwned").encode() + b"'\ntR."
    strange = [
        b"",
        b"\xff" * 100,
        pickled,
        msgspec.msgpack.encode({"type": "no such message"}),
        msgspec.msgpack.encode({"type": "step", "deltas": 3}),
        msgspec.msgpack.encode(AskState(1)),  # the wrong direction
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "start_failed", "message": "m", "permanent": True}).replace(
            b"m", b"\xff", 1
        ),
    ]
    try:
        with caplog.at_level(logging.WARNING):
            for frame in strange:
                peer.send(frame)
            peer.send(msgspec.msgpack.encode(TO_CLIENT[0]))
            deadline = time.monotonic() + 5
            while (message := client.receive()) is None and time.monotonic() < deadline:
                client.wait(0.1)
        assert message == TO_CLIENT[0]
        assert client.dropped == len(strange)
        assert len(caplog.records) == 1
        assert not (tmp_path / "pwned").exists()
    finally:
        client.close()
        engine.destroy(linger=0)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_to_a_frame_raises_more_than_the_channel_expects(data: st.DataObject) -> None:
    frame = bytearray(msgspec.msgpack.encode(TO_CLIENT[1]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    with contextlib.suppress(channel_module._UNDECODABLE):
        msgspec.msgpack.decode(damaged, type=ToClient)


def test_a_sender_is_told_when_nobody_reads(ends: Ends) -> None:
    client, engine = ends
    started = time.monotonic()
    sent = 0
    while client.send(AskState(sent)):
        sent += 1
        assert sent < 100 * MAX_FRAMES_IN_FLIGHT
    assert time.monotonic() - started < 5
    for expected in range(sent):
        assert received_by(engine) == AskState(expected)
    client.wait_writable(2)
    assert client.send(AskState(-1))


def test_an_overlong_frame_is_refused_before_it_is_sent(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    client, engine = ends
    monkeypatch.setattr(channel_module, "MAX_FRAME", 100)
    with pytest.raises(ChannelError, match="larger than 100"):
        client.send(Abort(("x" * 200,)))
    client.send(AskState(1))
    assert received_by(engine) == AskState(1)


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="too long"):
        Channel.bind(tmp_path / ("x" * 120))


def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="cannot listen"):
        Channel.bind(tmp_path / "missing" / "s")


def test_what_was_sent_just_before_the_end_arrives(tmp_path: Path) -> None:
    client = Channel.bind(tmp_path / "s")
    engine = Channel.connect(tmp_path / "s")
    engine.send(TO_CLIENT[0])
    engine.close()
    client.wait(2)
    assert client.receive() == TO_CLIENT[0]
    client.close()
