"""The rules for a Redis user are what is sent, all of it and nothing else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import redsem_async
from redsem_async._redis.acl import ADDITIONS, COMMANDS, HARMLESS_DENIALS, acl_rules
from redsem_async.cli.doctor._rights import probes
from tests.harness.source import tree_of

PACKAGE = Path(redsem_async.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
OPEN_TO_ALL = {"hello"}  # no rule takes it away


def called_by_scripts() -> set[str]:
    """What the scripts call, none of it under a name that is made up at run time."""
    found: set[str] = set()
    for path in (PACKAGE / "lua").rglob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        calls = re.findall(r"(?:\bcall|redis\.pcall)\s*\(\s*(\S*)", code)
        literal = [re.match(r"'([A-Z]+)'", first) for first in calls]
        assert all(literal), f"{path.name} calls {calls}"
        found |= {match[1].lower() for match in literal if match}
    return found


def sent_by_connections() -> Iterator[str]:
    """The name of every command that is packed, or sent before ours takes over."""
    for path in (PACKAGE / "_redis").glob("*.py"):
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            if function == "pack" or function.endswith(".send_command"):
                words = node.args[0]
                first = words.elts[0] if isinstance(words, ast.Tuple) else words
                assert isinstance(first, ast.Constant), f"{path.name}:{node.lineno}"
                yield str(first.value).lower().replace(" ", "|")


def test_every_command_is_allowed_and_every_allowed_one_is_used() -> None:
    """A missing one fails in production, an idle one widens what a stolen password can do."""
    sent, called = set(sent_by_connections()), called_by_scripts()
    assert sent
    assert called
    by_redis_py = {*ADDITIONS["client_name"], *ADDITIONS["database"]}
    allowed = {*COMMANDS, *(command for added in ADDITIONS.values() for command in added)}
    needed = (sent | called) - OPEN_TO_ALL - {*HARMLESS_DENIALS}
    assert sorted(needed) == sorted(allowed - by_redis_py)


def test_doctor_tries_every_command() -> None:
    """`subscribe` is tried in a way of its own."""
    assert sorted({*probes("redsem"), "subscribe"}) == sorted(COMMANDS)


def test_the_documented_line_is_the_one_in_the_code() -> None:
    """It is copied into a terminal as it stands."""
    text = (DOCS / "security.md").read_text().replace("\\\n", " ")
    assert " ".join(["ACL SETUSER semaphores on >SECRET", *acl_rules()]) in re.sub(
        r" +", " ", text
    )
    for commands in ADDITIONS.values():
        for command in commands:
            assert f"`+{command}`" in text


def test_additions_are_added() -> None:
    """And nothing else is with them."""
    beyond = set(acl_rules(additions=["database", "client_name"])) - set(acl_rules())
    assert beyond == {"+select", "+client|setname"}


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [
        ("redsem", "redsem"),
        ("a:b", "a:b"),
        ("a*b?c[d]e\\f", "a\\*b\\?c\\[d\\]e\\\\f"),
        ("two words", "two?words"),
    ],
)
def test_the_prefix_is_taken_literally(prefix: str, pattern: str) -> None:
    """A prefix with a star in it must not open other people's keys."""
    rules = acl_rules(prefix)
    assert f"~{pattern}:*" in rules
    assert f"&{pattern}:*" in rules
    assert rules[:2] == ("resetkeys", "resetchannels"), "no pattern from before is left"
