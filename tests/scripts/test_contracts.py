"""The contract of each script agrees with its binding and with its body.

A contract is the comment that opens a script. It names the KEYS and ARGV, which the binding passes
and the body uses.
"""

import re
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import MODES, Address, Mode
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.status import Status
from redsem_async._redis.codec import Codec
from redsem_async._redis.linking import linked
from redsem_async._redis.scripts import script

HUB = "f" * 32
REQUEST = op.QueuedRequest(7, 1000, 3)
WHO = HubInfo("somebody")
CALLS: dict[str, op.AnyOperation] = {
    "acquire": op.Acquire([7], 1000, 3, hub_info=WHO),
    "release": op.Release(HUB, [7]),
    "refresh": op.Refresh([7], 1000),
    "abandon": op.Abandon([REQUEST]),
    "heartbeat": op.Heartbeat(1000, [REQUEST], hub_info=WHO),
    "adopt": op.Adopt(HUB, 7, 8, 1000, WHO),
    "detach": op.Detach(7, 1000),
    "status": Status(10),
    "set_limit": op.SetLimit(3),
    "back_off": op.StartBackOff(1000, 5, 1),
    "reap": op.Reap(),
    "delete": op.Delete(),
}
KEYWORDS = {
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in"),
    *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
}
FUNCTIONS = {"ipairs", "pairs", "tonumber", "type", "unpack", "pcall"}
COMMON_ARGUMENTS = ["tag", "clock_us", "mode", "hub"]
LUA = Path(str(resources.files("redsem_async"))) / "lua"


def source(operation: str) -> str:
    return (LUA / f"{operation}.lua").read_text()


def contract(text: str, section: str) -> list[str]:
    """Names listed under *section* of the comment that opens a script."""
    head = text.split("\n\n", maxsplit=1)[0]
    lines = [line.removeprefix("--") for line in head.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [section])
    names = [lines[start].split()[1]]
    for line in lines[start + 1 :]:
        if re.match(r" [A-Z]{3}", line) or not line.strip():
            break
        if match := re.match(r" {10}(\[?\w+\]?)  ", line):
            names.append(match[1])
    return [] if names == ["none"] else names


@pytest.mark.parametrize("operation", CALLS)
def test_the_binding_passes_what_the_contract_names(operation: str) -> None:
    """A position that means something else to the script is found here, and not in production."""
    wire = Codec(Address("fair", "redsem", "name", "server"))
    _, (count, *rest) = wire.encode(CALLS[operation], 1, HUB)
    assert isinstance(count, int)
    arguments = rest[count + len(COMMON_ARGUMENTS) :]
    named = contract(source(operation), "ARGV")
    always = [name for name in named if not name.startswith("[")]
    assert len(always) <= len(arguments) <= len(named)


def test_the_head_names_every_key_in_order() -> None:
    """Keys go by position: one too many, and a script writes to another's."""
    head = (LUA / "head.lua").read_text()
    named = contract(head, "KEYS")
    assert contract(head, "ARGV") == COMMON_ARGUMENTS
    address = Address("fair", "p", "n", "server")
    kinds = [key.rpartition(":")[2] for key in address.keys]
    assert kinds == named
    assigned = re.findall(r"^local ([\w, ]+) = unpack\(KEYS\)", head, re.MULTILINE)
    assert ", ".join(assigned).split(", ") == named


@pytest.mark.parametrize("operation", CALLS)
def test_the_body_uses_every_argument(operation: str) -> None:
    """What is passed and not used is paid for on every call."""
    text = source(operation)
    body = text.split("\n\n", 1)[1]
    first = len(COMMON_ARGUMENTS) + 1
    listed = contract(text, "ARGV")
    for position, name in enumerate(listed, first):
        repeated = name in {"requests", "numbers", "permits"}
        constant = re.search(rf"local {name.upper()} = (\d+)", body)
        if repeated:
            assert constant is not None and int(constant[1]) == position
            assert len(re.findall(rf"\b{name.upper()}\b", body)) > 1
        else:
            assert f"ARGV[{position}]" in body, name


def code(text: str) -> str:
    """*text* without comments and without what stands in quotes."""
    return re.sub(r"--.*|'[^']*'", "''", text)


def names_in(body: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", body))


def declared_in(body: str) -> set[str]:
    """Locals, parameters and the variables of loops."""
    found = re.findall(r"\blocal (?:function )?([\w, ]+)", body)
    found += re.findall(r"\bfunction [\w.]*\(([\w, ]*)", body)
    found += re.findall(r"\bfor ([\w, ]+?) (?:=|in)", body)
    return {name.strip() for names in found for name in names.split(",")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", CALLS)
def test_every_name_in_a_script_is_declared(mode: Mode, operation: str) -> None:
    """A global is an error in Redis, at run time, on the path that reaches it."""
    text = code(script(mode, operation).text)
    fields = re.compile(r"(?<=[{,])\s*\w+ = ")
    globals_ = names_in(fields.sub("", text)) - declared_in(text) - KEYWORDS
    assert globals_ <= {"KEYS", "ARGV", "redis", "string", "table", "math"} | FUNCTIONS
    members = set(re.findall(r"function (\w+\.\w+)", text))
    for member in set(re.findall(r"\b(?:keyed|slotted)\.\w+(?=\()", text)):
        absent = not re.search(rf"^{member.partition('.')[0]} = ", text, re.MULTILINE)
        assert member in members or absent, member


def test_a_script_carries_only_what_it_uses() -> None:
    """Lua makes each function anew in each call, and a refresh needs few of them."""
    shared = "local a = 1\nlocal function b(x)\n  return x + a\nend\nlocal function c() end\n"
    assert linked("local z = 0", shared, "return b(z)") == (
        "local z = 0\nlocal a = 1\nlocal function b(x)\n  return x + a\nend\nreturn b(z)"
    )
    members = "t = {}\nfunction t.used() end\nfunction t.idle() end\ndo\n  function t.b() end\nend"
    assert linked("", members, "t.used()") == "\nt = {}\nfunction t.used() end\nt.used()"
    assert linked("", members, "t.b()") == "\nt = {}\ndo\n  function t.b() end\nend\nt.b()"
    for mode in MODES:
        assert "function serve" not in script(mode, "refresh").text


@pytest.mark.parametrize("version", ["lua51", "lua54"])
@pytest.mark.parametrize("sharded", [False, True], ids=["hub", "shard"])
@pytest.mark.parametrize("mode", MODES)
def test_every_script_is_valid_in_both_versions_of_lua(
    mode: Mode, sharded: bool, version: str
) -> None:
    """And has locals to spare, of the 200 that a function may have: what wraps it adds some."""
    lua: Any = import_module(f"lupa.{version}").LuaRuntime()
    compiles = lua.eval("function(text) return (loadstring or load)(text) end")
    spare = ", ".join(f"spare_{number}" for number in range(10))
    for operation in CALLS:
        text = f"local {spare} {script(mode, operation, sharded).text}"
        assert not isinstance(compiles(text), tuple), compiles(text)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_do_not_lose_digits(mode: Mode) -> None:
    """tostring() of a token keeps 14 of its 16 digits."""
    for operation in CALLS:
        body = re.sub(r"--.*", "", script(mode, operation).text)
        assert "tostring(" not in body
