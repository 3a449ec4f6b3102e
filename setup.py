"Put `configs/` into the wheel, for `--config humanlm-mini`; all else stands in pyproject.toml"

from setuptools import setup
from setuptools.command.build_py import build_py


class WithConfigs(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("configs", f"{self.build_lib}/humanlm/configs")


setup(cmdclass={"build_py": WithConfigs})
