"""Attributes of log records."""


def facts(event: str, **others: object) -> dict[str, object]:
    """The ``extra`` of a record, under names that no other library uses."""
    return {f"redsem_{name}": value for name, value in {"event": event, **others}.items()}
