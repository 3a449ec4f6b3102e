"`python -m humanlm COMMAND`, the same as `humanlm COMMAND`"
from humanlm.core.commands import main

raise SystemExit(main(prog="python -m humanlm"))
