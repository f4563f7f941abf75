"""Mutants of the dashboard."""

from .mutant import mutant

_ACCESS = "dashboard/_access.py"
_READER = "dashboard/_reader.py"
_CHANGES = "integrations/dashboard/test_changes.py::test_"
_PAGES = "integrations/dashboard/test_pages.py::test_"
_READS = "integrations/dashboard/test_reader.py::test_"

OF_DASHBOARD = (
    mutant(
        "any token of the right form will do",
        "pages of other sites change nothing",
        f"{_CHANGES}requests_of_other_sites_are_refused",
        (_ACCESS, "not hmac.compare_digest(cookie.encode(), sent.encode())", "False"),
    ),
    mutant(
        "the site that sends a request is not looked at",
        "pages of other sites change nothing",
        f"{_CHANGES}requests_of_other_sites_are_refused",
        (_ACCESS, 'if site != "same-origin":', "if False:"),
    ),
    mutant(
        "a dashboard that only shows changes what it is told to",
        "read-only means read-only",
        f"{_CHANGES}read_only_means_read_only",
        (_ACCESS, "if action in CHANGES and not self.writable:", "if False:"),
    ),
    mutant(
        "authorize is not asked",
        "who may not is refused",
        f"{_CHANGES}who_may_not_is_refused_and_logged",
        (_ACCESS, "if self._authorize is None:", "if True:"),
    ),
    mutant(
        "a page that may not revoke has whole ids",
        "the id of a permit is shown to nobody who may not revoke it",
        f"{_PAGES}ids_are_not_shown_whole",
        ("dashboard/_views.py", '"id": holder.id if whole else None', '"id": holder.id'),
    ),
    mutant(
        "templates do not escape",
        "text from outside stays text",
        f"{_PAGES}hostile_text_stays_text",
        ("dashboard/_app.py", "autoescape=True", "autoescape=False"),
    ),
    mutant(
        "the reader goes on after the last page",
        "a dashboard at which nobody looks costs nothing",
        f"{_READS}nothing_is_read_while_nobody_looks",
        (_READER, "            if not self._watches:\n", "            if False:\n"),
    ),
    mutant(
        "every row of a list is read in every tick",
        "the load does not depend on what the pages show",
        f"{_READS}what_pages_show_is_bounded_too",
        (_READER, "self._read_rows(shown[:SHOWN])", "self._read_rows(shown)"),
    ),
    mutant(
        "numbers of an hour ago are shown as if they were new",
        "a page shows what is so",
        f"{_READS}what_was_read_long_ago_is_not_shown",
        (_READER, "if time.monotonic() - self._ticked > OLD:", "if False:"),
    ),
    mutant(
        "a client that does not read is read for",
        "a client that does not read holds nothing",
        f"{_READS}a_client_that_does_not_read_is_dropped",
        ("dashboard/_app.py", "asyncio.timeout(STALLED)", "asyncio.timeout(None)"),
    ),
)
