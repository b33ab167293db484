"""Run by `build` as a script, in a folder with the copies: setuptools' build of the files named behind `--`."""

import sys

from mypyc.build import mypycify
from setuptools import setup

if __name__ == "__main__":
    end = sys.argv.index("--")
    sources, sys.argv[end:] = sys.argv[end + 1 :], []
    modules = mypycify(["--config-file", "mypy.ini", *sources], opt_level="2", debug_level="0", group_name="testbed")
    setup(name="testbed-compiled", packages=[], py_modules=[], ext_modules=modules)
