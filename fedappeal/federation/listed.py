"""What the lists of a SuperLink have in common: their rows for machines."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Listed:
    """A row of a list."""

    def as_dict(self) -> dict[str, str]:
        """Return all fields as texts; JSON's numbers, which end at 2^53, cannot hold the ids."""
        return {key.replace("_", "-"): str(value) for key, value in asdict(self).items()}
