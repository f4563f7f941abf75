"""``run``: a permit around any command, with real processes and terminals."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Rate, Semaphore, connect
from redsem_async._tools.discovery import find
from redsem_async.testing import EmbeddedRedis
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, give_back, soon, takes_at_most, until
from tests.integrations.cli.commands import COMMAND, CTRL_C, TIMEOUT, program, queued, terminal

CTRL_Z = "\x1a"
LEASE = 2.0

# Says that it is ready, and then each signal that it gets; ends with 7 at SIGINT or SIGTERM
# unless it is stubborn.
LISTENER = """
import os, signal, sys

names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
numbers = {getattr(signal, name) for name in names}
numbers = {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.write(1, f"ready {os.getpid()}\\n".encode())  # in one piece
while True:
    number = signal.sigwait(numbers)
    print(signal.Signals(number).name, flush=True)
    if number in (signal.SIGINT, signal.SIGTERM) and "stubborn" not in sys.argv:
        sys.exit(7)
"""
LISTENS = (sys.executable, "-c", LISTENER)
STUBBORN_IN_A_SHELL = ("sh", "-c", '"$@"; exit $?', "sh", *LISTENS, "stubborn")
TELLER = """
import os, signal
names = ("REDSEM_PERMIT", "REDSEM_TOKEN", "REDSEM_SLOT")
print(*map(os.environ.get, names), flush=True)
signal.pause()
"""
SHOWS_SLOT = ("sh", "-c", "echo ${REDSEM_SLOT:-none}")
TELLS = (sys.executable, "-c", TELLER)


class Wrapped:
    """A command under ``run``, whose lines of output can be awaited."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self) -> str:
        """The next line of its output; empty when no process has it open any more."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT)
        return line.decode().strip()

    async def ready(self) -> int:
        """Wait until a `LISTENER` is ready, and return its process id."""
        ready, pid = (await self.says()).split()
        assert ready == "ready"
        return int(pid)

    async def ended(self) -> int:
        """The exit code; other processes may still have its output open."""
        await until(lambda: self.process.returncode is not None, "it has ended", TIMEOUT)
        assert self.process.returncode is not None
        return self.process.returncode

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


Start = Callable[..., Awaitable[Wrapped]]


@pytest.fixture
async def start(url: str) -> AsyncIterator[Start]:
    """Starts ``run`` with some arguments, and kills it after the test."""
    async with AsyncExitStack() as stack:

        async def started(*arguments: str, before: tuple[str, ...] = ()) -> Wrapped:
            process = await asyncio.create_subprocess_exec(
                *(*before, *COMMAND, "run", *arguments),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=os.environ | {"REDIS_URL": url},
                start_new_session=True,
            )

            @stack.push_async_callback
            async def end() -> None:
                if process.returncode is None:
                    process.kill()
                await process.communicate()

            return Wrapped(process)

        yield started


async def test_the_exit_code_is_that_of_the_command(
    start: Start, url: str, redis: Redis, tmp_path: Path
) -> None:
    """Of one that cannot be run, it is as shells have it, also if nobody can be told."""
    for script, code in (("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)):
        result = await program("run", "jobs", "--", "sh", "-c", script, REDIS_URL=url)
        assert (result.code, result.out, result.err) == (code, "", "")
    plain = tmp_path / "plain"
    plain.touch(0o600)
    for command, code in (("no-such-command", 127), ("", 127), (str(plain), 126)):
        result = await program("run", "jobs", "--", command, REDIS_URL=url)
        assert result.code == code
        assert result.error_line.startswith(f"{command}: ")
    await all_free(FairSemaphore(redis, "jobs", 1))
    async with FairSemaphore(redis, "jobs", 1):
        result = await program("run", "jobs", "--", "no-such-command", REDIS_URL=url)
        assert result.code == 127, "before it waits"
    closed = ("sh", "-c", 'exec "$@" 2>&-', "sh")
    assert await (await start("jobs", "--", "no-such-command", before=closed)).ended() == 127


async def test_without_a_permit_nothing_is_started(url: str, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1, label="api")
    async with semaphore:
        arguments = ("run", "--verbose", "--timeout", "2", "jobs", "--", "echo", "started")
        result = await program(*arguments, REDIS_URL=url)
    assert (result.code, result.out) == (75, "")
    waiting, refused = result.err.splitlines()
    assert waiting.startswith(
        "redsem-async: waiting for 'jobs': limit 1, 1 held, 1 waiting; held by api ("
    )
    assert refused.startswith("redsem-async: timed out after 2")


@pytest.mark.parametrize(
    "options", [("--timeout", "0.2"), ("--lease", "4"), ("--limit", "1", "--lease", "4")]
)
async def test_redis_is_unreachable(options: tuple[str, ...]) -> None:
    """The look-up and the wait share one deadline. A longer one is not spent in silence."""
    with takes_at_most(6.0):
        result = await program(
            "run", *options, "jobs", "--", "echo", "started", REDIS_URL="redis://127.0.0.1:1"
        )
    assert (result.code, result.out) == (69, "")
    *said, error = result.err.splitlines()
    assert error == (
        "redsem-async: Can't reach Redis at redis://127.0.0.1:1 (connection refused)."
        " Is --url or REDIS_URL right?"
    )
    assert [line.removeprefix(error)[:18] for line in said] == [" Trying again for "] * (
        "--lease" in options
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--limit", "0", "--timeout", "0"),
        ("--limit", "1", "--slots", "a"),
        ("--lease", "0"),
        ("--permits", "2"),
        ("--no-fair", "--key", "a"),
        ("--slots", "a,a"),
        ("--max-hold", "20", "--min-hold", "21"),
        ("--max-hold", "9"),
    ],
)
async def test_invalid_options(options: tuple[str, ...], url: str) -> None:
    """Each is named as it is given."""
    result = await program("run", *options, "jobs", "--", "echo", "started", REDIS_URL=url)
    assert result.code == 2
    assert result.error_line.startswith(("--", "give either --", "duplicate slot"))


async def test_the_environment_tells_of_the_permit(
    start: Start, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Id, fencing token and slots; a variable of another permit does not stay."""
    monkeypatch.setenv("REDSEM_SLOT", "of another")
    plain = await start("--no-fair", "plain", "--", *TELLS)
    permit, token, slot = (await plain.says()).split()
    assert permit and int(token) > 0
    assert slot == "None"
    slotted = await start("--slots", "cuda:0,cuda:1", "--permits", "2", "gpu", "--", *TELLS)
    permit, token, slot = (await slotted.says()).split()
    semaphore = FairSemaphore(redis, "gpu", slots=["cuda:0", "cuda:1"])
    [holder] = (await semaphore.status()).holders
    assert (holder.id, holder.fencing_token) == (permit, int(token))
    assert holder.client.label == Path(sys.executable).name
    assert slot == "cuda:0,cuda:1"
    assert slotted.process.pid == holder.client.pid


async def test_keys_have_the_limit_that_is_given_or_declared(url: str, redis: Redis) -> None:
    """And another key has room."""
    given = ("run", "--limit", "4", "--timeout", "0", "--key")
    async with FairSemaphore(redis, "llm", 4, key_limit=1).acquire(key="acme"):
        for arguments, code in (
            (("acme", "llm"), 75),
            (("acme", "--key-limit", "1", "llm"), 75),
            (("acme", "--key-limit", "2", "llm"), 0),
            (("beta", "llm"), 0),
        ):
            result = await program(*given, *arguments, "--", "true", REDIS_URL=url)
            assert result.code == code, arguments


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 3, "key_limit": 2, "share": True},
        {"limit": 3, "clock": "local"},
        {"slots": ["a", "b"]},
    ],
    ids=["keys", "clock", "slots"],
)
async def test_keys_clock_and_slots_are_those_of_other_clients(
    options: dict[str, Any], url: str, redis: Redis
) -> None:
    """With others it would be refused."""
    async with FairSemaphore(redis, "llm", **options).acquire(key=None) as permit:
        result = await program("run", "--timeout", "0", "llm", "--", *SHOWS_SLOT, REDIS_URL=url)
        slot = "none" if permit.slot is None else "ab".replace(str(permit.slot), "")
        assert (result.code, result.out.strip(), result.err) == (0, slot, "")


async def test_beside_a_service_it_takes_over_the_limit(start: Start, url: str) -> None:
    """With a limit of 1 it would wait until all permits are free, and the service behind it."""
    async with connect(url, decode_responses=True) as service:
        llm = FairSemaphore(service, "llm", 3)
        held = [await llm.acquire() for _ in range(2)]
        wrapped = await start("--timeout", "0", "llm", "--", *LISTENS)
        await wrapped.ready()
        assert (await llm.status()).held == 3
        result = await program("run", "--timeout", "0", "llm", "--", "true", REDIS_URL=url)
        assert result.code == 75, "a third that runs would be a fourth permit"
        await give_back(*held)


async def test_where_clients_declare_several_limits_it_names_them(url: str, redis: Redis) -> None:
    """Whichever it took, some client would be given too little or too much."""
    async with (
        connect(url) as other,
        FairSemaphore(redis, "llm", 3),
        FairSemaphore(other, "llm", 4),
    ):
        result = await program("run", "llm", "--", "true", REDIS_URL=url)
        assert result.code == 2
        assert result.error_line == (
            "the clients of 'llm' declare the limits 3 and 4, or just did: give --limit"
        )


@pytest.mark.parametrize(
    ("costs", "code", "says"),
    [
        (["tokens=300"], 0, ""),
        (["tokens=300", "requests=2"], 0, ""),
        ([], 2, "--cost must say what it takes from 'tokens', as in --cost tokens=5"),
        (["5"], 2, "--cost must say what it takes from 'tokens', as in"),
        (["tokens=5", "words=5"], 2, "--cost names 'words', and there is no such rate"),
        (["tokens=-1"], 2, "--cost must be a number of at least 0, not '-1'"),
    ],
)
async def test_beside_a_service_it_costs_what_it_is_told(
    costs: list[str], code: int, says: str, url: str, redis: Redis
) -> None:
    rate = {"requests": Rate(1, per=100, burst=9), "tokens": Rate(1, burst=900)}
    sem = FairSemaphore(redis, "llm", 3, rate=rate)
    async with sem.acquire(cost={"tokens": 0}):
        told = [word for cost in costs for word in ("--cost", cost)]
        result = await program("run", *told, "llm", "--", "true", REDIS_URL=url)
        assert (result.code, says in result.err) == (code, True), result.err
        left = (await sem.status()).rates["tokens"].available
        assert (left < 700) is (code == 0)


async def test_without_a_rate_there_is_no_cost(url: str) -> None:
    for more, says in (((), "no client of 'llm' declares a rate"), (("--no-fair",), "--fair")):
        result = await program("run", "--cost=1", *more, "llm", "--", "true", REDIS_URL=url)
        assert (result.code, says in result.error_line) == (2, True)


async def test_a_rate_is_that_of_the_clients_or_else_as_given(url: str, redis: Redis) -> None:
    """Whether or not the services are awake, the night job runs, and keeps the name for them."""
    given = ("--rate=50", "--rate=tokens=90000/60")
    cost = ("--cost=tokens=1000", "--timeout=0", "llm", "--", "true")
    result = await program("run", *given, *cost, REDIS_URL=url)
    assert (result.code, result.err) == (0, "")
    rate = {"requests": Rate(50), "tokens": Rate(90_000, per=60)}
    async with FairSemaphore(redis, "llm", 1, rate=rate).acquire(cost={"tokens": 1}, timeout=9):
        pass
    big = FairSemaphore(redis, "big", 2, rate={"tokens": Rate(60_000, per=3600, burst=9000)})
    async with big.acquire():
        more = ("--timeout=0", "big", "--", "true")
        result = await program("run", "--rate=tokens=1", "--cost=5000", *more, REDIS_URL=url)
        assert (result.code, result.err) == (0, ""), "the client's burst counts"
        assert (await big.status()).rates["tokens"].available > 3000


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        (["much"], "--rate must be a number of at least 0, not 'much'"),
        (["0/60"], "--rate amount must be a finite number > 0, not 0.0"),
        (["5/7200"], "--rate per is at most 3600 seconds: a budget for a day or a month is"),
        ([f"{name}=5" for name in "abcde"], "--rate may name 1 to 4 rates, not 5"),
        (["5", "--no-fair"], "--rate need --fair"),
    ],
)
async def test_a_rate_is_an_amount_in_some_seconds(rates: list[str], says: str, url: str) -> None:
    told = [word if word.startswith("--") else f"--rate={word}" for word in rates]
    result = await program("run", *told, "llm", "--", "true", REDIS_URL=url)
    assert (result.code, says in result.error_line) == (2, True), result.err


async def test_the_limit_of_a_client_that_is_dead_does_not_count(
    start: Start, url: str, redis: Redis
) -> None:
    """What a service of last month declared is no reason for anything."""
    async with connect(url) as service, FairSemaphore(service, "llm", 3, lease=0.5):
        pass
    await until(lambda: is_dead(redis, "llm"), within=10)
    first = await start("llm", "--", *LISTENS)
    await first.ready()
    result = await program("run", "--timeout", "0", "llm", "--", "true", REDIS_URL=url)
    assert result.code == 75, "one at a time, where nobody uses the name"


async def is_dead(redis: Redis, name: str) -> bool:
    """Whether Redis knows clients of *name*, of which none is alive."""
    found = await find(redis, "redsem", name)
    return found is not None and bool(found.clients) and not found.dead_in


async def test_the_class_is_that_of_other_clients(url: str, redis: Redis) -> None:
    arguments = ("run", "--limit", "2", "--timeout", "0")
    async with Semaphore(redis, "llm", 2):
        result = await program(*arguments, "llm", "--", "true", REDIS_URL=url)
        assert (result.code, result.err) == (0, "")
        for given in ("--fair", "--key=a"):
            result = await program(*arguments, given, "llm", "--", "true", REDIS_URL=url)
            assert result.code == 69
            assert "in use as a Semaphore" in result.err


async def test_a_server_that_is_not_up_yet_is_waited_for(
    start: Start, server: EmbeddedRedis
) -> None:
    """As by every client: a restart costs the command nothing but time."""
    asked = asyncio.Event()

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        asked.set()

    server.kill()
    async with await asyncio.start_server(refuse, "127.0.0.1", server.port):
        wrapped = await start("--timeout", "20", "jobs", "--", "true")
        for _ in range(3):
            await asyncio.wait_for(asked.wait(), TIMEOUT)
            asked.clear()
    server.restart()
    assert await wrapped.ended() == 0


async def revoke(redis: Redis) -> None:
    """Take the permit of ``jobs`` away."""
    semaphore = FairSemaphore(redis, "jobs", 1)
    [holder] = (await semaphore.status()).holders
    assert await semaphore.release(holder.id)


async def test_signals_are_passed_on(start: Start) -> None:
    """And do not end the wrapper, which waits for the command."""
    wrapped = await start("jobs", "--", *LISTENS)
    await wrapped.ready()
    for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGINT"):
        wrapped.process.send_signal(getattr(signal, name))
        assert await wrapped.says() == name
    assert await wrapped.ended() == 7


async def test_sigterm_reaches_the_whole_group(start: Start, redis: Redis) -> None:
    """A shell that waits for a command does not pass it on. The next request gets the permit."""
    semaphore = FairSemaphore(redis, "jobs", 1)
    wrapped = await start("jobs", "--", "sh", "-c", '"$@"; exit $?', "sh", *LISTENS)
    await wrapped.ready()
    [waiter] = await queued(semaphore)
    wrapped.process.terminate()
    assert await wrapped.says() == "SIGTERM"
    assert await wrapped.ended() == 143
    await (await soon(waiter)).release()


async def test_an_ignored_signal_stays_ignored(start: Start) -> None:
    """As `nohup` wants it, here and in the command."""
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    wrapped = await start("jobs", "--", *LISTENS, before=nohup)
    await wrapped.ready()
    wrapped.process.send_signal(signal.SIGHUP)
    wrapped.process.terminate()
    assert await wrapped.says() == "SIGTERM"


async def test_a_blocked_sigchld_is_inherited(start: Start) -> None:
    """From a program that awaits its children in another way: the end is seen all the same."""
    code = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]);"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    wrapped = await start("jobs", "--", "true", before=(sys.executable, "-c", code))
    assert await wrapped.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_it_waits_ends_it(
    number: signal.Signals, start: Start, redis: Redis
) -> None:
    """Nothing is started, and the place in the queue is free."""
    semaphore = FairSemaphore(redis, "jobs", 1)
    async with semaphore:
        wrapped = await start("--verbose", "jobs", "--", *LISTENS)
        assert wrapped.process.stderr is not None
        assert b"waiting" in await soon(wrapped.process.stderr.readline(), TIMEOUT)
        wrapped.process.send_signal(number)
        assert await wrapped.ended() == 128 + number
        assert await wrapped.says() == ""
        assert (await semaphore.status()).waiting == 0


@pytest.mark.parametrize("how", ["revoke", "delete", "max_hold"])
async def test_a_lost_permit_terminates_the_command(how: str, start: Start, redis: Redis) -> None:
    options = ("--lease", "0.4", "--max-hold", "0.6") if how == "max_hold" else ()
    wrapped = await start(*options, "jobs", "--", *LISTENS)
    await wrapped.ready()
    if how == "revoke":
        await revoke(redis)
    elif how == "delete":
        await FairSemaphore(redis, "jobs", 1).delete()
    assert await wrapped.says() == "SIGTERM"
    assert await wrapped.ended() == 7
    assert "lost the permit of 'jobs'" in await wrapped.errors()


async def test_after_a_loss_the_command_may_clean_up(start: Start, redis: Redis) -> None:
    """One that is stopped would not get the SIGTERM. A shell ends at once, its child later."""
    wrapped = await start("--lease", "60", "jobs", "--", *STUBBORN_IN_A_SHELL)
    pid = await wrapped.ready()
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGUSR1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wrapped.says(), 0.2)
    await revoke(redis)
    assert {await wrapped.says(), await wrapped.says()} == {"SIGTERM", "SIGUSR1"}
    os.kill(pid, signal.SIGUSR2)
    assert await wrapped.says() == "SIGUSR2"
    assert wrapped.process.returncode is None
    os.kill(pid, signal.SIGKILL)
    assert await wrapped.ended() == 143


@pytest.mark.parametrize(
    ("command", "code"), [((*LISTENS, "stubborn"), 137), (STUBBORN_IN_A_SHELL, 143)]
)
async def test_after_a_loss_what_ignores_sigterm_is_killed(
    command: tuple[str, ...], code: int, start: Start, redis: Redis
) -> None:
    """Before the lease would have ended. A shell ends at SIGTERM, and what it runs may not."""
    wrapped = await start("--lease", str(LEASE), "jobs", "--", *command)
    await wrapped.ready()
    with takes_at_most(LEASE):
        await revoke(redis)
        assert await wrapped.says() == "SIGTERM"
        assert await wrapped.says() == ""
    assert await wrapped.ended() == code


async def test_an_outage_ends_the_command_before_its_lease(embedded: StartServer) -> None:
    """Others may get the permit once the lease has ended."""
    server = embedded()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "run", "--lease", str(LEASE), "--url", server.url),
        *("jobs", "--", *LISTENS, "stubborn"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    wrapped = Wrapped(process)
    pid = await wrapped.ready()
    server.kill()
    with takes_at_most(LEASE):
        assert await wrapped.says() == "SIGTERM"
        await until(lambda: not _exists(pid), within=LEASE)
    assert await wrapped.ended() == 137
    assert "it could not be refreshed" in await wrapped.errors()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _killer_of(wrapped: Wrapped) -> int:
    pid = wrapped.process.pid
    children = await asyncio.to_thread(Path(f"/proc/{pid}/task/{pid}/children").read_text)
    [killer] = [child for child in map(int, children.split()) if os.getsid(child) != pid]
    return killer


TWO = ("sh", "-c", '"$@" & "$@"; wait', "sh", *LISTENS, "stubborn")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, PR_SET_PDEATHSIG")


@pytest.mark.parametrize(
    ("command", "listeners", "number"),
    [
        pytest.param(TWO, 2, None, id="alone"),
        pytest.param(TWO, 2, signal.SIGTERM, id="after a SIGTERM by name", marks=on_linux),
        # It cannot kill any more, and the kernel kills the command.
        pytest.param(LISTENS, 1, signal.SIGKILL, id="after its killer", marks=on_linux),
    ],
)
async def test_a_killed_wrapper_leaves_no_process(
    command: tuple[str, ...], listeners: int, number: int | None, start: Start
) -> None:
    """Neither the command nor what it has started has its output open any more."""
    wrapped = await start("jobs", "--", *command)
    for _ in range(listeners):
        await wrapped.ready()
    if number is not None:
        os.kill(await _killer_of(wrapped), number)
    wrapped.process.kill()
    assert await wrapped.says() == ""


async def test_a_process_that_the_command_leaves_behind_lives_on(start: Start) -> None:
    """As in a shell: the permit was the command's."""
    script = ("sh", "-c", '"$@" &', "sh", *LISTENS)
    wrapped = await start("jobs", "--", *script)
    assert await wrapped.ended() == 0
    os.kill(await wrapped.ready(), signal.SIGTERM)
    assert await wrapped.says() == "SIGTERM"


async def test_stdin_is_the_commands(url: str) -> None:
    done = await asyncio.create_subprocess_exec(
        *(*COMMAND, "run", "--url", url, "jobs", "--", "cat"), stdin=PIPE, stdout=PIPE
    )
    assert (await done.communicate(b"line\n" * 100_000))[0] == b"line\n" * 100_000
    assert done.returncode == 0


# -- in a terminal


async def test_the_command_has_the_terminal(url: str) -> None:
    """It is in the foreground, reads what is typed, and gets Ctrl-C once."""
    code = f"import os; print(os.tcgetpgrp(0) == os.getpgrp(), input('name? '))\n{LISTENER}"
    with terminal(
        "run", "--url", url, "jobs", "--", sys.executable, "-c", code, "stubborn"
    ) as shown:
        await shown.shows("name? ")
        shown.press("alice\n")
        await shown.shows("True alice")
        await shown.shows("ready")
        shown.press(CTRL_C)
        await shown.shows("SIGINT")
        os.kill(shown.process.pid, signal.SIGUSR1)
        await shown.shows("SIGUSR1")
        assert shown.screen.count("SIGINT") == 1


SHELL = ("/bin/sh", "-i")
ASKS = """
import itertools, os, signal

number = itertools.count(1)
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued %d\\n" % next(number)))
with open("/dev/tty") as tty:
    print("your line?", flush=True)
    while line := tty.readline():
        print("got", line, end="", flush=True)
"""


@pytest.fixture
def line(url: str, tmp_path: Path) -> str:
    """What runs the command that asks, in a shell."""
    script = tmp_path / "reader.py"
    script.write_text(ASKS)
    run = ("run", "--lease", "60", "--url", url, "jobs", "--")
    return " ".join((*COMMAND, *run, sys.executable, str(script)))


async def test_job_control_of_a_shell(line: str) -> None:
    """Ctrl-Z stops both, `fg` resumes them, and Ctrl-C comes to the command."""
    with terminal(program=SHELL) as shown:
        shown.press(f"{line}\n")
        await shown.shows("your line?")
        shown.press(CTRL_Z)
        await shown.shows("Stopped")
        shown.press("fg\n")
        await shown.shows("continued 1")
        shown.press("alice\n")
        await shown.shows("got alice")
        shown.press(CTRL_C)
        await shown.shows("KeyboardInterrupt")
        shown.press("echo code $?; exit 0\n")
        await shown.shows("code 1")
        assert await shown.ended() == 0


async def test_a_pipeline_gets_the_terminal_when_it_asks(line: str) -> None:
    """Not before, because another part of the pipeline may read from it."""
    with terminal(program=SHELL) as shown:
        shown.press(f"{line} | cat\n")
        await shown.shows("your line?")
        shown.press("alice\n")
        await shown.shows("got alice")
        shown.press(CTRL_Z)
        await shown.shows("Stopped")
        shown.press("fg\n")
        await shown.shows("continued 2")
        shown.press(CTRL_C)
        await shown.shows("KeyboardInterrupt")
        shown.press("exit 0\n")
        assert await shown.ended() == 0


async def test_a_job_that_ends_soon_runs_once_a_tick(start: Start, url: str, redis: Redis) -> None:
    """A host whose timer comes later finds the permit taken. A signal ends the hold."""
    first = await start("--min-hold", "60", "--timeout", "0", "tick", "--", "echo", "done")
    assert await first.says() == "done"
    again = await program("run", "--timeout", "0", "tick", "--", "true", REDIS_URL=url)
    assert again.code == 75
    assert (await FairSemaphore(redis, "tick", 1).status()).held == 1
    first.process.terminate()
    assert await first.ended() == 0, "the job itself has succeeded"
    await all_free(FairSemaphore(redis, "tick", 1))


async def test_a_permit_is_kept_until_seconds_after_its_grant(url: str, redis: Redis) -> None:
    """Not after the end of the command, which may take longer."""
    began = time.monotonic()
    held = ("run", "--min-hold", "1.5", "tick", "--", "sleep")
    assert (await program(*held, "0", REDIS_URL=url)).code == 0
    assert time.monotonic() - began >= 1.5
    assert (await FairSemaphore(redis, "tick", 1).status()).held == 0


async def test_a_command_that_is_asked_to_end_keeps_no_permit(start: Start) -> None:
    """Whoever stops a job waits for nothing else."""
    wrapped = await start("--min-hold", "60", "tick", "--", *LISTENS)
    await wrapped.ready()
    wrapped.process.terminate()
    assert await wrapped.ended() == 7
