"""Whether the server in this container does its work: exit status 0 or 1, and one line.

Only the standard library, so that a look every few seconds costs little. A full queue is no illness: whoever restarts
what is unhealthy would only make it worse.
"""

from __future__ import annotations

import http.client
import json
import os
import sys

TIMEOUT = 4.0
"""Seconds; less than the container engine waits for this program."""
WELL = frozenset({"ready", "queue_full"})


def main() -> int:
    port = int(os.environ.get("HEADWATER_PORT", "8000"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/health/ready")
        status = json.load(connection.getresponse())["status"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        print(f"no answer: {error}")
        return 1
    finally:
        connection.close()
    print(status)
    return 0 if status in WELL else 1


if __name__ == "__main__":
    sys.exit(main())
