"""Flower's `flwr-serverapp`, without the web framework and the database that only a SuperLink uses.

python -P -m fedappeal.flower.superlink.serverapp [options of `flwr-serverapp`]
"""

import argparse
from queue import Queue

from fedappeal.flower.processes import import_without_server
from fedappeal.system.tuning import quick_imports


def main() -> None:
    """Run a ServerApp with this process's command line."""
    with quick_imports():
        import_without_server()
        from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
        from flwr.supercore.logger import mirror_output_to_queue, restore_output
        from flwr.supercore.tls import validate_and_resolve_root_certificates
        from flwr.superlink.runtime import run_serverapp

    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address")
    add_args_flwr_app_common(parser)
    options = parser.parse_args()
    output: Queue[str | None] = Queue()
    mirror_output_to_queue(output)
    run_serverapp(
        runtime_api_address=options.runtime_api_address,
        log_queue=output,
        token=try_obtain_flwr_app_token(options),
        insecure=options.insecure,
        certificates=validate_and_resolve_root_certificates(options.root_certificates, options.insecure),
        parent_pid=options.parent_pid,
        runtime_dependency_install=options.runtime_dependency_install,
    )
    restore_output()


if __name__ == "__main__":
    main()
