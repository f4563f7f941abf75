"""What a mutant is meant to be caught by: a test, or a command that is none.

A target is a text: the id of a test below ``tests``, with or without its parameters, or a command
line of Python's.
"""

import shlex

SIMULATION = "python -m tests.worlds.simulation --operations 30000 --most-violations 1"
AGREEMENT = "scripts/test_spec.py::test_memory_and_redis_agree"
JOURNAL = "scripts/test_journal_checker.py::test_nothing_is_wrong_with_what_the_scripts_did"


def is_test(target: str) -> bool:
    return not target.startswith("python ")


def node_of(target: str) -> str:
    """The id by which pytest knows *target*, a test."""
    return f"tests/{target}"


def command_of(target: str) -> tuple[str, ...]:
    """The arguments of Python that run *target*."""
    if is_test(target):
        return tests_command(node_of(target), "-x")
    return tuple(shlex.split(target)[1:])


def tests_command(*arguments: str) -> tuple[str, ...]:
    """The arguments of Python that run pytest with *arguments*."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
    return ("-m", "pytest", "-q", *plugins, *arguments)
