"""Mutants of the layout's number, and of what is said of versions."""

from .mutant import mutant

_MODE = "promises/test_mode.py"
_VERSIONS = "faults/test_versions.py"

OF_LAYOUTS = (
    mutant(
        "another layout is not noticed",
        "clients with another layout of the keys change nothing",
        f"{_VERSIONS}::test_another_layout_is_refused_and_changes_nothing",
        ("lua/head.lua", " or fields.layout and fields.layout ~= LAYOUT then", " then"),
    ),
    mutant(
        "a name without a layout is any layout's",
        "versions from before layouts had numbers are told apart",
        f"{_MODE}::test_nothing_can_be_done_with_another_layout",
        (
            "lua/head.lua",
            "fields.layout = fields[13] or fields[1] and '0'",
            "fields.layout = fields[13]",
        ),
    ),
    mutant(
        "an acquire does not note the layout",
        "versions with one layout share a name",
        f"{_MODE}::test_a_name_stays_taken_after_its_last_use_and_then_is_free[server-fair-redis]",
        ("lua/acquire.lua", "'mode', mode, 'layout', LAYOUT,", "'mode', mode,"),
        ("lua/prelude.lua", "'mode', mode, 'layout', LAYOUT,", "'mode', mode,"),
    ),
    mutant(
        "a clear leaves the layout",
        "a name that was cleared is free for every version",
        f"{_MODE}::test_a_name_of_another_layout_is_free_after_its_last_use",
        ("lua/clear.lua", "'HDEL', meta, 'mode', 'layout',", "'HDEL', meta, 'mode',"),
    ),
    mutant(
        "the dead count as users",
        "the error names the versions that use the name now",
        f"{_MODE}::test_only_processes_that_are_alive_count_as_users",
        ("lua/head.lua", "hubs, after, '+inf', 'LIMIT'", "hubs, '-inf', '+inf', 'LIMIT'"),
    ),
    mutant(
        "keys of another layout break the error",
        "whatever another layout stores, the error says that it is another",
        f"{_MODE}::test_whatever_another_layout_has_the_error_is_the_same",
        (
            "lua/head.lua",
            "    pcall(function()  -- the keys",
            "    local look = (function()  -- the",
        ),
        (
            "lua/head.lua",
            "    end)\n    return redis.error_reply(string.format('LAYOUT",
            "    end)\n    look()\n    return redis.error_reply(string.format('LAYOUT",
        ),
    ),
    mutant(
        "all processes are read for the error",
        "the work of an error is bounded",
        f"{_MODE}::test_whatever_another_layout_has_the_error_is_the_same",
        ("lua/head.lua", "after, '+inf', 'LIMIT', 0, 32)", "after, '+inf')"),
    ),
    mutant(
        "a layout that is no number is repeated",
        "what is stored cannot pass for another error",
        f"{_MODE}::test_whatever_another_layout_has_the_error_is_the_same",
        ("lua/head.lua", "string.match(fields.layout, '^%d%d?%d?%d?$') or '0'", "fields.layout"),
    ),
    mutant(
        "memory takes any layout",
        "MemoryBackend refuses as Redis does",
        f"{_MODE}::test_nothing_can_be_done_with_another_layout",
        (
            "testing/_spec/base.py",
            "or state.layout) and state.layout != layout():",
            "or state.layout) and False:",
        ),
    ),
    mutant(
        "a process does not say its version",
        "status and errors say which versions are in use",
        f"{_VERSIONS}::test_versions_with_one_layout_share_a_name[another version]",
        ("_hub/introduction.py", "            version=__version__,\n", ""),
    ),
    mutant(
        "a name of another layout looks unused",
        "ls and status say that another version uses a name",
        "integrations/cli/test_ls_and_status.py"
        "::test_a_name_with_another_layout_is_an_error_of_that_name_only",
        (
            "_redis/stored.py",
            '    if ("mode" in meta or "layout" in meta) and meta.get("layout") != str(layout()):\n',
            "    if False:\n",
        ),
    ),
)
