"""Faults to plant in the kernels: what stands in a file of ptx/, and what is put there instead.

Each text stands exactly once in its file. Some cannot be seen from outside;
each of these says why.
"""

from data import DATA
from float8 import FLOAT8
from move import MOVE
from norm import NORM
from oneshot_mc import ONESHOT_MC
from order import BARRIER, BLOCKS
from push import PUSH
from push_mc import PUSH_MC
from push_wait import PUSH_WAIT
from split import SPLIT

PUSHES = PUSH + PUSH_WAIT + PUSH_MC
ALL = BARRIER + BLOCKS + DATA + FLOAT8 + MOVE + PUSHES + ONESHOT_MC + SPLIT + NORM
