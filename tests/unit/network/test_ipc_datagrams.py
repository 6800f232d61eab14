"""Objects and descriptors between processes of ours."""

from __future__ import annotations

import os

import pytest

from belljar.network import ipc


def test_an_object_and_a_descriptor_arrive() -> None:
    """The copy reads what the original reads."""
    ours, theirs = ipc.pair()
    with ours, theirs:
        fd = ipc.new_file()
        ipc.fill(fd, {"x": [1, None]})
        ipc.send(ours, {"take": "it"}, [fd])
        os.close(fd)
        message, fds = ipc.receive(theirs)
        assert message == {"take": "it"}
        assert not os.get_inheritable(fds[0])
        assert ipc.from_file(fds[0]) == {"x": [1, None]}


def test_an_end_is_told() -> None:
    """Both ways."""
    ours, theirs = ipc.pair()
    theirs.close()
    with ours:
        with pytest.raises(ipc.ClosedError):
            ipc.receive(ours)
        with pytest.raises(ipc.ClosedError):
            ipc.send(ours, {})


def test_last_messages_are_read_after_a_reset() -> None:
    """The kernel reports the reset first."""
    ours, theirs = ipc.pair()
    ipc.send(ours, {"do": "more"})
    ipc.send(theirs, {"failed": "why"})
    theirs.close()
    with ours:
        assert ipc.receive(ours) == ({"failed": "why"}, [])
        with pytest.raises(ipc.ClosedError):
            ipc.receive(ours)

    ours, theirs = ipc.pair()
    with ours:
        theirs.send(b"it is over")
        ours.send(b"what?")
        theirs.close()
        assert ipc.receive_bytes(ours, 100) == b"it is over"
        with pytest.raises(ipc.ClosedError):
            ipc.receive_bytes(ours, 100)


def test_what_is_no_message_is_refused() -> None:
    """Another's bytes, and more than fits."""
    ours, theirs = ipc.pair()
    with ours, theirs:
        ours.send(b"[]")
        with pytest.raises(ValueError, match="no object"):
            ipc.receive(theirs)
        with pytest.raises(ValueError, match="a message of"):
            ipc.send(ours, {"x": "y" * ipc.MAX_MESSAGE_BYTES})
