"""Builds the one-pass encoder, an optional extension; setup.cfg describes everything else."""

import os

from setuptools import Extension, setup

PARTS = ("memory", "scanner", "json", "fields", "files")

# Without a compiler, or without Cython, the service is installed without it, and encodes with Python.
one_pass = Extension(
    "service.store.outputs.one_pass",
    ["service/store/outputs/one_pass.pyx"],
    depends=[f"service/store/outputs/one_pass_{part}.pxi" for part in PARTS],
    extra_compile_args=["-O2", "-g0"],  # more takes twice as long to build, and runs no faster
    optional=True,
)

setup(ext_modules=[] if os.environ.get("SDS_PURE") else [one_pass])
