"""Shows keyword options where a class takes them as ``**options``: `nox -s docs` loads this.

`Mutex` and `SemaphoreGroup` take the options of a semaphore as ``**options: Unpack[Options]``. In
the reference they get the parameters themselves, with the defaults and the text that
`AnySemaphore` has for them.
"""

import re
from typing import Any

import griffe

ENTRIES = re.compile(r"^    (\w+): .*\n(?:^        .*\n)*", re.MULTILINE)


class ExpandOptions(griffe.Extension):
    """Replaces ``**options`` in a signature and in its docstring."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        names = set(pkg["_api.options.Options"].members)
        source = pkg["_api.semaphore.AnySemaphore.__init__"]
        texts = {entry[1]: entry[0] for entry in ENTRIES.finditer(source.docstring.value)}
        texts = {name: text for name, text in texts.items() if name in names}
        if not texts.keys() == names <= {each.name for each in source.parameters}:
            raise ValueError("AnySemaphore does not document every option")
        kinds = (pkg[f"_api.classes.{name}"] for name in ("FairSemaphore", "Mutex"))
        for owner in (*kinds, pkg["_api.group.SemaphoreGroup"]):
            made = owner.members["__init__"]
            del made.parameters["options"]
            for parameter in source.parameters:
                if parameter.name in names:
                    made.parameters.add(parameter)
            if made.docstring is None:  # Mutex: what a semaphore takes, but for the limit
                text = source.docstring.value
                limit = next(each for each in ENTRIES.finditer(text) if each[1] == "limit")
                made.docstring = griffe.Docstring(
                    text.replace(limit[0], ""), parent=made, parser=griffe.Parser.google
                )
                continue
            text = made.docstring.value
            entry = next(each for each in ENTRIES.finditer(text) if each[1] == "options")
            made.docstring.value = text.replace(entry[0], "".join(texts.values()))
