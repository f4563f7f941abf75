"""``redsem-async demo``: the library's main job, on real processes and real requests.

Nothing is imported here: the demo's processes are modules of this package, and start the
sooner for it.
"""
