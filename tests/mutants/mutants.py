"""All the mutants."""

from .of_client import OF_CLIENT
from .of_dashboard import OF_DASHBOARD
from .of_design import OF_DESIGN
from .of_keys import OF_KEYS
from .of_layouts import OF_LAYOUTS
from .of_scripts import OF_SCRIPTS
from .of_slots import OF_SLOTS

MUTANTS = (*OF_SCRIPTS, *OF_CLIENT, *OF_DESIGN, *OF_KEYS, *OF_SLOTS, *OF_DASHBOARD, *OF_LAYOUTS)
