"""All the mutants: about one for each promise."""

from .of_back_off import OF_BACK_OFF
from .of_client import OF_CLIENT
from .of_keys import OF_KEYS
from .of_scripts import OF_SCRIPTS
from .of_tools import OF_TOOLS

MUTANTS = (*OF_SCRIPTS, *OF_KEYS, *OF_CLIENT, *OF_TOOLS, *OF_BACK_OFF)
