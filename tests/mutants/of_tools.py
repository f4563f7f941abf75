"""Mutants of the dashboard, the integrations, the command line and MemoryBackend."""

from .mutant import mutant

OF_TOOLS = (
    mutant(
        "any token of the right form will do",
        "pages of other sites change nothing",
        "requests_of_other_sites_are_refused",
        ("dashboard._access", "hmac.compare_digest(cookie.encode(), sent.encode())", "True"),
    ),
    mutant(
        "a dashboard that only shows changes what it is told to",
        "read-only means read-only",
        "read_only_means_read_only",
        ("dashboard._access", "action in CHANGES and not self.writable", "False"),
    ),
    mutant(
        "authorize is not asked",
        "who may not is refused",
        "who_may_not_is_refused_and_logged",
        ("dashboard._access", "self._authorize is None", "True"),
    ),
    mutant(
        "a page that may not revoke has whole ids",
        "the id of a permit is shown to nobody who may not revoke it",
        "ids_are_not_shown_whole",
        ("dashboard._views", "holder.id if whole else None", "holder.id"),
    ),
    mutant(
        "templates do not escape",
        "text from outside stays text",
        "hostile_text_stays_text",
        (
            "dashboard._app",
            "Environment(loader=PackageLoader('redsem_async.dashboard'), autoescape=True, undefined=StrictUndefined)",
            "Environment(loader=PackageLoader('redsem_async.dashboard'), undefined=StrictUndefined)",
        ),
    ),
    mutant(
        "the reader goes on after the last page",
        "a dashboard at which nobody looks costs nothing",
        "nothing_is_read_while_nobody_looks",
        ("dashboard._reader", "not self._watches", "False"),
    ),
    mutant(
        "a semaphore with keys is taken without a key",
        "no limit of a key is passed in silence",
        "a_group_needs_a_key",
        ("_integrations.selector", "source.keyed", "False"),
    ),
    mutant(
        "a response that is left unread is not warned of",
        "a response that is left unread for a lease is named",
        "a_response_that_is_left_unread_is_named_once",
        ("_integrations.outbound", "left > 0", "True"),
    ),
    mutant(
        "doctor does not look where the replicas are gone",
        "doctor looks for what bounds the time of two masters",
        "a_master_that_sentinels_watch_may_be_replaced",
        ("doctor._server", "not (replicas or watched)", "not replicas"),
    ),
    mutant(
        "memory counts by the wall clock",
        "leases are counted by a clock that nobody sets",
        "a_step_of_the_wall_clock_changes_no_lease",
        ("testing._memory", "self._epoch_us + _clock_us()", "time.time_ns() // 1000"),
    ),
)
