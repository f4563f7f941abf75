"""All the mutants."""

from .of_client import OF_CLIENT
from .of_design import OF_DESIGN
from .of_scripts import OF_SCRIPTS

MUTANTS = (*OF_SCRIPTS, *OF_CLIENT, *OF_DESIGN)
