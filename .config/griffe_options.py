"""Shows keyword options where a class takes them as ``**options``: `nox -s docs` loads this.

The classes take their options as ``**options: Unpack[...]``. In the reference they get the
parameters themselves, with the types and defaults of `Terms` and the text that `AnySemaphore` has
for them.
"""

import re
from typing import Any

import griffe

ENTRIES = re.compile(r"^    (\w+): .*\n(?:^        .*\n)*", re.MULTILINE)
TAKEN = {
    "_api.classes.Semaphore": "Options",
    "_api.classes.FairSemaphore": "FairOptions",
    "_api.classes.Mutex": "Options",
    "_api.group.SemaphoreGroup": "GroupOptions",
}


class ExpandOptions(griffe.Extension):
    """Replaces ``**options`` in a signature and in its docstring."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        terms = pkg["_core.config.Terms.__init__"].parameters
        text = pkg["_api.semaphore.AnySemaphore.__init__"].docstring.value
        texts = {entry[1]: entry[0] for entry in ENTRIES.finditer(text)}
        options = pkg["_core.config.FairOptions"].all_members  # those of its bases, too
        documented = {each.name for each in terms} - {"self"}
        if not documented - {"limit"} == set(options) <= texts.keys():
            raise ValueError("options, their checks and their text do not agree")
        for path, kind in TAKEN.items():
            made = pkg[path].members["__init__"]
            names = pkg[f"_core.config.{kind}"].all_members.keys()
            del made.parameters["options"]
            for parameter in terms:
                if parameter.name in names:
                    made.parameters.add(parameter)
            if made.docstring is None:  # a semaphore, with the text of its base
                shown = text
                for name in texts.keys() - {each.name for each in made.parameters}:
                    shown = shown.replace(texts[name], "")
                made.docstring = griffe.Docstring(shown, parent=made, parser=griffe.Parser.google)
                continue
            shown = made.docstring.value
            entry = next(each for each in ENTRIES.finditer(shown) if each[1] == "options")
            taken = "".join(texts[name] for name in texts if name in names)
            made.docstring.value = shown.replace(entry[0], taken)
