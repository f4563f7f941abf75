"""``redsem-async bench`` measures a real server, deletes its keys, and ends cleanly."""

import json
import os
import signal
import subprocess
import sys
from typing import cast

from redis import Redis as SyncRedis

from tests.harness.servers import StartServer

BENCH = (sys.executable, "-m", "redsem_async", "bench")


def keys_of(url: str) -> set[bytes]:
    with SyncRedis.from_url(url) as client:
        return set(cast("list[bytes]", client.keys()))


def test_it_measures_both_modes_and_leaves_no_key(embedded: StartServer) -> None:
    url = embedded().url
    done = subprocess.run(
        [*BENCH, "--url", url, "--seconds", "0.1", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert facts["round_trip"]["per_second"] > 0
    for load in ("alone", "contended"):
        assert set(facts[load]) == {"FairSemaphore", "Semaphore"}
        for latency in facts[load].values():
            assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    assert keys_of(url) == set()


def test_without_a_url_it_measures_an_embedded_server() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    done = subprocess.run(
        [*BENCH, "--seconds", "0.1"], env=environment, capture_output=True, text=True, check=True
    )
    server, *table = done.stdout.splitlines()
    assert "embedded" in server
    assert len([line for line in table if "acquire" in line]) == 4


def test_interrupted_it_leaves_no_key(embedded: StartServer) -> None:
    url = embedded().url
    with subprocess.Popen(
        [*BENCH, "--url", url, "--seconds", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline().startswith("Redis: ")
        while not keys_of(url):
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        rest = bench.stdout.read()
    assert bench.returncode == 130
    assert rest.splitlines()[-1] == "interrupted"
    assert keys_of(url) == set()
