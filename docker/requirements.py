"""Print the requirements of the server from setup.cfg, for the image's layer of dependencies."""

import configparser
import sys

config = configparser.ConfigParser()
config.read(sys.argv[1])
print(config["options"]["install_requires"])
print(config["options.extras_require"].get("server", ""))
