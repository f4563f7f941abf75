"""What a permit costs: beside other libraries, and beside the least that the same trips cost."""
