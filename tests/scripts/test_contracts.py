"""The contract of each script agrees with its binding and with its body.

A contract is the comment that opens a script. It names the KEYS and ARGV, which the binding passes
and the body uses.
"""

import re
import textwrap
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import MODES, Address, Mode
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.status import Status
from redsem_async._redis.codec import Codec
from redsem_async._redis.linking import linked, statements
from redsem_async._redis.scripts import script

HUB = "f" * 32
REQUEST = op.QueuedRequest(7, 1000, 3)
WHO = HubInfo("somebody")
CALLS: dict[str, op.AnyOperation] = {
    call.script: call
    for call in (
        *(op.Acquire([7], 1000, 3, hub_info=WHO), op.Release(HUB, [7]), op.Refresh([7], 1000)),
        *(op.Abandon([REQUEST]), op.Heartbeat(1000, [REQUEST], hub_info=WHO), op.Reap()),
        *(op.Adopt(HUB, 7, 8, 1000, WHO), op.Detach(7, 1000), Status(10), op.SetLimit(3)),
        *(op.StartBackOff(1000, 5, 1), op.Delete()),
    )
}
KNOWN = {
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in"),
    *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
    *("KEYS", "ARGV", "redis", "string", "table", "math"),
    *("ipairs", "pairs", "tonumber", "type", "unpack", "pcall"),
}
COMMON_ARGUMENTS = ["tag", "clock_us", "mode", "hub"]
LUA = Path(str(resources.files("redsem_async"))) / "lua"
SHARED = (
    "ramp",
    "holders",
    "hubs",
    "queue",
    "order",
    "serve",
)  # keyed_order defines what order does
DEFINED = {
    file: frozenset[str]().union(
        *(each.defines for each in statements((LUA / f"{file}.lua").read_text()))
    )
    - {"state", "keyed", "slotted", "rated"}
    for file in SHARED
} | {"tell": frozenset({"publish_to"})}


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
def test_the_binding_passes_what_the_contract_names_and_the_body_uses(operation: str) -> None:
    """A position that means something else to the script is found here, and not in production."""
    text = (LUA / f"{operation}.lua").read_text()
    _, (count, *rest) = Codec(Address("fair", "p", "n", "server")).encode(CALLS[operation], 1, HUB)
    assert isinstance(count, int)
    named = contract(text, "ARGV")
    always = [name for name in named if not name.startswith("[")]
    assert len(always) <= len(rest) - count - len(COMMON_ARGUMENTS) <= len(named)
    body = text.split("\n\n", 1)[1]
    for position, name in enumerate(named, len(COMMON_ARGUMENTS) + 1):
        if name in {"requests", "numbers", "permits"}:  # repeated
            constant = re.search(rf"local {name.upper()} = (\d+)", body)
            assert constant is not None and int(constant[1]) == position
            assert len(re.findall(rf"\b{name.upper()}\b", body)) > 1
        else:
            assert f"ARGV[{position}]" in body, name


@pytest.mark.parametrize("operation", CALLS)
def test_a_script_says_from_which_files_it_has_what_it_uses(operation: str) -> None:
    """Whoever reads one finds where ``purge`` is, without a search through all."""
    text = (LUA / f"{operation}.lua").read_text()
    used = {name for statement in statements(text) for name in statement.uses}
    found = {file: sorted(used & defined) for file, defined in DEFINED.items()}
    each = [f"{file} ({' '.join(names)})" for file, names in found.items() if names]
    said = textwrap.fill(f"uses: {', '.join(each)}", 97, subsequent_indent="      ")
    assert textwrap.indent(said, "-- ") in text, f"write {said}"


def test_the_head_names_every_key_in_order() -> None:
    """Keys go by position: one too many, and a script writes to another's."""
    head = (LUA / "head.lua").read_text()
    named = contract(head, "KEYS")
    assert contract(head, "ARGV") == COMMON_ARGUMENTS
    keys = Address("fair", "p", "n", "server").keys
    assert [key.rpartition(":")[2] for key in keys] == named
    assigned = re.findall(r"^local ([\w, ]+) = unpack\(KEYS\)", head, re.MULTILINE)
    assert ", ".join(assigned).split(", ") == named


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", CALLS)
def test_every_name_in_a_script_is_declared(mode: Mode, operation: str) -> None:
    """A global is an error in Redis, at run time, on the path that reaches it.

    And no number goes through tostring(), which keeps 14 of the 16 digits of a token.
    """
    text = re.sub(r"--.*|'[^']*'", "''", script(mode, operation).text)
    declared = re.findall(r"\blocal (?:function )?([\w, ]+)", text)
    declared += re.findall(r"\bfunction [\w.]*\(([\w, ]*)", text)
    declared += re.findall(r"\bfor ([\w, ]+?) (?:=|in)", text)
    names = {name.strip() for names in declared for name in names.split(",")}
    without_fields = re.sub(r"(?<=[{,])\s*\w+ = ", "", text)
    assert {*re.findall(r"(?<![\w.])[A-Za-z_]\w*", without_fields)} <= names | KNOWN
    members = {*re.findall(r"function (\w+\.\w+)", text)}
    for member in {*re.findall(r"\b(?:keyed|slotted|rated)\.\w+(?=\()", text)} - members:
        table = member.partition(".")[0]
        assert not re.search(rf"^{table} = ", text, re.MULTILINE), member


def joined(*files: str) -> str:
    before, shared, own = map(statements, files)
    return "\n".join(each.text for each in linked(before, shared, own))


def test_a_script_carries_only_what_it_uses() -> None:
    """Lua makes each function anew in each call, and a refresh needs few of them."""
    shared = "local a = 1\nlocal function b(x)\n  return x + a\nend\nlocal function c() end\n"
    text = "local z = 0\nlocal a = 1\nlocal function b(x)\nreturn x + a\nend\nreturn b(z)"
    assert joined("local z = 0", shared, "return b(z)") == text
    members = "t = {}\nfunction t.used() end\nfunction t.idle() end\ndo\n  function t.b() end\nend"
    assert joined("", members, "t.used()") == "t = {}\nfunction t.used() end\nt.used()"
    assert joined("", members, "t.b()") == "t = {}\ndo\nfunction t.b() end\nend\nt.b()"
    for mode in MODES:
        assert "function serve" not in script(mode, "refresh").text


@pytest.mark.parametrize("version", ["lua51", "lua54"])
def test_every_script_is_valid_in_both_versions_of_lua(version: str) -> None:
    """And has locals to spare, of the 200 that a function may have: what wraps it adds some."""
    lua: Any = import_module(f"lupa.{version}").LuaRuntime()
    compiles = lua.eval("function(text) return (loadstring or load)(text) end")
    spare = ", ".join(f"spare_{number}" for number in range(10))
    for mode in MODES:
        for text in (script(mode, name, shard).text for name in CALLS for shard in (True, False)):
            compiled = compiles(f"local {spare} {text}")
            assert not isinstance(compiled, tuple), compiled
