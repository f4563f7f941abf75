"""Which service a server belongs to, as far as it can be told. No I/O here."""

import re
from collections.abc import Mapping
from typing import Any

_HOSTS = (
    (r"\.serverless\..*\.cache\.amazonaws\.com", "Amazon ElastiCache Serverless"),
    (r"\.cache\.amazonaws\.com", "Amazon ElastiCache"),
    (r"\.memorydb\..*\.amazonaws\.com", "Amazon MemoryDB"),
    (r"\.redis\.cache\.windows\.net", "Azure Cache for Redis"),
    (r"\.(redis|redisenterprise\.cache)\.azure\.net", "Azure Managed Redis"),
    (r"\.upstash\.io", "Upstash"),
    (r"\.(redislabs|redis-cloud)\.com", "Redis Cloud"),
    (r"\.redis\..*\.oraclecloud\.com", "OCI Cache"),
    (r"\.rds\.aliyuncs\.com", "Alibaba Cloud Tair"),
)
_FIELDS = {"dragonfly_version": "Dragonfly", "storage_provider_read_hits": "KeyDB"}


def service_of(host: str, info: Mapping[str, Any], hello: Mapping[str, str]) -> str | None:
    """The name of the service; None where a server passes for Redis or Valkey.

    *info* is the reply to INFO and *hello* that to HELLO, empty where it is refused.
    """
    for end, name in _HOSTS:
        if re.search(rf"{end}(\.cn)?\Z", host):
            return name
    for field, name in _FIELDS.items():
        if field in info:
            return name
    if str(info.get("os", "")).startswith("Amazon"):
        return str(info["os"])
    greets_as = hello.get("server", "redis")
    return None if greets_as in ("redis", "valkey") else greets_as.capitalize()
