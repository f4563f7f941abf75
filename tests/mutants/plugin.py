"""What pytest is run with: Hypothesis from a fixed seed and without shrinking."""

from hypothesis import Phase, settings

# Shrinking finds the shortest example for a reader, and nobody reads these.
settings.register_profile(
    "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mutants")
