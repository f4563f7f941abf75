"""All cases, in order."""

from benchmarks.cases.back_off import P15
from benchmarks.cases.distance import P10
from benchmarks.cases.handoff import P4
from benchmarks.cases.idle import P5, P7, P8
from benchmarks.cases.keys import P13
from benchmarks.cases.one_process import P1, P2, P3
from benchmarks.cases.processes import P9
from benchmarks.cases.rates import P16

CASES = {case.name: case for case in (P1, P2, P3, P4, P5, P7, P8, P9, P10, P13, P15, P16)}
