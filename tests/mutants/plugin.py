"""What pytest is run with: Hypothesis from a fixed seed and without shrinking."""

from hypothesis import Phase, settings

# Who breaks a promise is asked for once; the shortest way to it is for people to read.
settings.register_profile(
    "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mutants")
