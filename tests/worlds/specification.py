"""The executable specification as a server in virtual time."""

from redsem_async._core.keys import Address, Mode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Operation
from redsem_async._protocol.replies import AnyReply
from redsem_async.testing._memory import SPECIFICATIONS
from redsem_async.testing._spec.base import Specification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import Publish, Reordered, UnknownHub, Void


def specification(mode: Mode, publish: Publish) -> QueueSpecification:
    made = SPECIFICATIONS[mode.removesuffix("+slots")](publish)
    assert isinstance(made, QueueSpecification)
    return made


def carry_out(
    model: Specification, address: Address, call: Operation, hub: str, now_us: int
) -> AnyReply | CommandError:
    """Run *call*, and answer as a link does."""
    try:
        return model.run(address, call, hub, now_us)
    except (Reordered, UnknownHub, Void) as again:
        return CommandError(ErrorKind.RETRY_NOW, again)
