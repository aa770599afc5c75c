from gristmill.dataset import *
from gristmill.core.options import *
