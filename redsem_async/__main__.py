"""``python -m redsem_async`` is the ``redsem-async`` command."""

from redsem_async.cli import main

if __name__ == "__main__":
    main()
