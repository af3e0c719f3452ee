"""``python -m rt_core`` is ``rt``."""

from rt_core.cli import main

raise SystemExit(main())
