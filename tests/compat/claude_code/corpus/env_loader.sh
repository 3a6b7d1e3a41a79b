#!/bin/bash
# Give later commands a variable, as nvm or direnv users do.
if [ -n "$CLAUDE_ENV_FILE" ]; then
  {
    echo 'export NODE_ENV=test'
    echo "export GREETING='hello  there'"
    echo "export PATH=\"$CLAUDE_PROJECT_DIR/bin:\$PATH\""
  } >> "$CLAUDE_ENV_FILE"
fi
exit 0
