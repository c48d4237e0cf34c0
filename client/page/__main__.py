"""The page's process beside a client: `python -m client.page FOLDER PORT LIMITS`, until its standard input ends."""

import sys
from pathlib import Path

from client.page.app import BODIES, volunteer_app
from fedappeal.settings.config import ConfigError
from fedappeal.web.serving import PagePlace, serve_page

if __name__ == "__main__":
    try:
        place = PagePlace(int(sys.argv[2]), setting="page-port")
        with serve_page(volunteer_app(Path(sys.argv[1]), sys.argv[3]), place, bodies=BODIES) as page:
            print(f"your page: {page.url}", flush=True)
            sys.stdin.buffer.read()  # the client holds the other end: however it ends, this ends too
    except ConfigError as error:  # the port was taken since it was checked; the client needs no page
        sys.exit(f"fedappeal: {error}")
