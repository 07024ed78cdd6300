"""Print the pinned requirements of the server, for the image's layer of dependencies.

`requirements.py setup.cfg constraints.txt`: everything that is pinned, except the packages of the extra `local`, which
hold a MongoDB server.
"""

import configparser
import re
import sys
from pathlib import Path

config = configparser.ConfigParser()
config.read(sys.argv[1])
local = set(re.findall(r"^([\w.-]+)", config["options.extras_require"]["local"].strip(), re.MULTILINE))
pinned = re.split(r"\n(?=[A-Za-z0-9])", Path(sys.argv[2]).read_text())
print("\n".join(part for part in pinned if part.split("==")[0] not in local))
