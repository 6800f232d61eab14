"""The command line: one module a command group, imported when its command runs.

Every dynamic string is escaped where it is shown (`units.printable`). It must not decide
anything that a library user would need too.
"""

import gc

# Python collects after 700 new objects; importing makes hundreds of thousands and no garbage. Here,
# since a fifth of a short command's imports come before `main` is called.
gc.set_threshold(200_000)
