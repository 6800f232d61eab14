"""The byte pipe between host and guest agent: `wire` (sans-io) and `client`.

It never believes the guest, and doesn't know what a cell or a VM is.
"""

from belljar.channel.client import GuestClient as GuestClient
from belljar.channel.frames import RenewedBit as RenewedBit
from belljar.channel.frames import Stream as Stream
from belljar.channel.operations import Operation as Operation
from belljar.channel.outcomes import CommandError as CommandError
from belljar.channel.outcomes import ExecOutput as ExecOutput
from belljar.channel.outcomes import ExecRequest as ExecRequest
from belljar.channel.outcomes import FileTooLargeError as FileTooLargeError
from belljar.channel.outcomes import OutputTexts as OutputTexts
from belljar.channel.outcomes import PtySize as PtySize
