"""What the tasks on texts let a run choose."""

from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from fedappeal.settings.config import Count, CountOrZero


class TextSettings(PluginSettings):
    """Settings that all tasks on texts share.

    Paths are relative to each machine's own ``data-dir``, and stay inside it: a run names files of a client's machine
    only where its owner keeps what is for such runs.
    """

    model_dir: str = Field(
        "", description="folder under data-dir with a model and its tokenizer, as transformers saves"
    )
    random_weights: bool = Field(
        False, description="draw all weights from the seed: of the folder, config.json and tokenizer alone are read"
    )
    data: str = Field(
        "", description="texts under data-dir: .csv, .jsonl, .parquet, or a folder that datasets saved (one split)"
    )
    text_column: str = Field("text", min_length=1, description="column of the texts")
    client_column: str = Field(
        "", description="column that says whose row it is, for partition = natural; empty: the rows are shared out"
    )
    max_length: Count = Field(128, description="tokens of each text: longer texts are cut, shorter ones padded")
    lora_rank: CountOrZero = Field(
        8, description="rank of the LoRA adapters; 0: none, all weights are trained and sent"
    )
    lora_alpha: Count = Field(16, description="scale of the adapters: they count alpha / rank times")
    lora_targets: str = Field(
        "",
        description="layers with adapters, names by commas; empty: PEFT's for the model; all-linear: each linear one",
    )
    evaluation_batch: Count = Field(
        64, description="texts a forward pass of an evaluation: bounds the memory it takes"
    )
