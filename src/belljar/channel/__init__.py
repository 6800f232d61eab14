"""The byte pipe between host and guest agent: framing (sans-io) and the client.

Lives here: `wire` (bytes ↔ frames ↔ events, every length, id and state checked) and `client`
(operations over a stream).
Must not: believe the guest; hold more than the bound per operation; know what a cell or a VM is.
"""

from belljar.channel.client import GuestClient
from belljar.channel.frames import RenewedBit, Stage, Stream
from belljar.channel.messages import Configured, Ready, Renewed, Welcome
from belljar.channel.operations import Operation, Timeout
from belljar.channel.outcomes import (
    CommandError,
    ExecOutput,
    ExecRequest,
    FileTooLargeError,
    OutputTexts,
    PtySize,
)

__all__ = [
    "CommandError",
    "Configured",
    "ExecOutput",
    "ExecRequest",
    "FileTooLargeError",
    "GuestClient",
    "Operation",
    "OutputTexts",
    "PtySize",
    "Ready",
    "Renewed",
    "RenewedBit",
    "Stage",
    "Stream",
    "Timeout",
    "Welcome",
]
