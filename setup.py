"""What pyproject.toml cannot say: settings files go into the wheel, for `--config humanlm-mini`; a
development install has the commands of nbdev by their documented names, which nbdev 3 spells with
hyphens"""

from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

NBDEV = {
    "nbdev_clean": "clean",
    "nbdev_docs": "quarto",
    "nbdev_export": "doclinks",
    "nbdev_install_hooks": "clean",
    "nbdev_prepare": "quarto",
    "nbdev_readme": "quarto",
    "nbdev_test": "test",
}
SCRIPT = """#!python
import sys

try:
    from nbdev.{module} import {function}
except ModuleNotFoundError as e:
    sys.exit(f"error: {{e}}. Next: pip install -e '.[dev]'")
if __name__ == "__main__":
    sys.exit({function}())
"""


class WithConfigs(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("configs", f"{self.build_lib}/humanlm/configs")


class WithNbdev(editable_wheel):
    def run(self):
        with TemporaryDirectory(dir=".") as folder:  # setuptools takes no absolute paths
            self.distribution.scripts = [f"{Path(folder).name}/{name}" for name in NBDEV]
            for name, module in NBDEV.items():
                function = name.replace("nbdev_prepare", "prepare")
                Path(folder, name).write_text(SCRIPT.format(module=module, function=function))
            super().run()


setup(cmdclass={"build_py": WithConfigs, "editable_wheel": WithNbdev})
