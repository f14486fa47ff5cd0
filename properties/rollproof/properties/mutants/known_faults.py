"""Faults that people met in public, and that the gate must catch: where they were reported, and what went wrong.

Facts read in public issue and pull-request threads, in our own words. Every fault is claimed by a mutant, whose origin
names the same threads, so that no implementation that passed the gate has it again.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from rollproof.properties.mutants.catalogue import MUTANTS
from rollproof.properties.mutants.mutant import Mutant, threads


@frozen
class KnownFault:
    """One fault: ``reported`` lists the public threads, ``what`` says what went wrong."""

    reported: str
    what: str

    @property
    def sources(self) -> frozenset[str]:
        """Each thread as ``owner/name number``."""
        return threads(self.reported)

    @property
    def mutants(self) -> list[Mutant]:
        """The mutants whose origin names one of the threads."""
        return [mutant for mutant in MUTANTS if mutant.sources & self.sources]


KNOWN_FAULTS: Final[tuple[KnownFault, ...]] = tuple(
    KnownFault(reported, what)
    for reported, what in (
        ("verl-project/verl 3287", "A mask made for tokens is sliced as if it were made for labels."),
        ("mll-lab-nu/RAGEN 71", "The mask is inverted: the prompt trains and the answer does not."),
        ("allenai/open-instruct 1202", "What a tool returned becomes trainable."),
        ("huggingface/trl 4970", "Padding is inferred from token values, which hides a generated end token."),
        ("huggingface/trl 5144", "Tokenizing again gives fewer ids, and the mask keeps its length."),
        ("modelscope/ms-swift 8427", "Log-probabilities and mask are off by one against each other."),
        ("vllm-project/vime 70", "Missing log-probabilities are filled with 0.0, surplus ones are cut."),
        ("vllm-project/vllm 17876", "With speculative decoding every log-probability is 0.0."),
        ("AI-Hypercomputer/maxtext 5231", "Some log-probabilities are above zero."),
        ("huggingface/trl 6693", "A NaN log-probability turns into null, and then into a neutral value."),
        (
            "sgl-project/sglang 20724, 26510; THUDM/slime 1861, 1440; NVIDIA/TensorRT-LLM 18190",
            "A retraction, a retry, a resume or a trim changes one column and not the others.",
        ),
        ("PrimeIntellect-ai/prime-rl 1383", "The tracker of prefixes forgets earlier turns."),
        ("areal-project/AReaL 647", "A word gets other ids when it is tokenized again."),
        ("NVIDIA-NeMo/RL 1903, 2360", "Template ids repeat tokens; lengths before and after expansion are mixed."),
        ("sgl-project/sglang 26555", "Ids that were handed in are decoded and tokenized again."),
        ("vllm-project/vllm 53029", "Logits that are all NaN give the id that is the vocabulary's size."),
        ("NVIDIA-NeMo/Gym 2823", "A receipt that is not poisoned and has no selection is accepted."),
        ("NVIDIA-NeMo/Gym 2872", "A terminal field that was renamed is ignored under its old name."),
        ("NVIDIA-NeMo/Gym 2124", "A lost call is swallowed, and a chain with a hole looks complete."),
        ("NVIDIA-NeMo/RL 4129", "Two failure reasons are taken for the full list."),
        ("PrimeIntellect-ai/prime-rl 1807; NVIDIA-NeMo/RL 3485", "The last token of a turn keeps a dummy route."),
        (
            "sgl-project/sglang 20964; vllm-project/vllm 37094; radixark/miles 893",
            "There is one route too few, there are routes of earlier turns as well, or only the tokens were cut.",
        ),
        ("vllm-project/vllm 35623", "The last pipeline rank zeroes the layers of the other ranks."),
        ("vllm-project/vllm 39391", "A NaN gate picks expert 0 in every slot."),
        ("sgl-project/sglang 36404, 12162", "Padding or live tokens get a stale or repeated real route."),
        ("google/tunix 2046; PrimeIntellect-ai/prime-rl 3350", "Padding is filled with expert 0."),
        ("vllm-project/vllm 39917", "A preemption drops routes, and nothing says so."),
        ("PrimeIntellect-ai/prime-rl 2487", "Turns whose routes have different narrow dtypes are stitched together."),
        ("sgl-project/sglang 9499", "The sentinel -1, stored in uint8, is expert 255."),
        ("NVIDIA-NeMo/RL 4240; NovaSky-AI/SkyRL 2091", "Narrow or unsigned storage fails above 256 experts."),
        ("radixark/miles 645", "One pad token turns replay off for the whole sequence."),
        ("radixark/miles 2770", "A vector that is sentinel in some slots only is replayed."),
        ("NVIDIA-NeMo/RL 3837", "Deferred failures are counted where nobody reads; truncation is hard-coded."),
        (
            "rllm-org/rllm 622; areal-project/AReaL 1342; radixark/miles 2244; Tencent-Hunyuan/UniRL 324",
            "The weight version is read late, reset to 0, restarted, or counts calls.",
        ),
        ("NVIDIA-NeMo/RL 4160; OpenRLHF/OpenRLHF 1239", "Masked rows vote in the baseline."),
        (
            "huggingface/trl 6427, 5775; radixark/miles 2814",
            "A null or NaN reward is reinforced, or spoils its group.",
        ),
        (
            "NVIDIA-NeMo/labs-molt 109; THUDM/slime 1918; radixark/miles 1325",
            "Groups are short or flattened, or a segment counts as a row.",
        ),
        ("awslabs/agentcore-rl-toolkit 122", "A failed rollout trains as one token."),
        ("NVIDIA-NeMo/RL 3923, 3794", "Results without the failed ones are zipped with all inputs."),
        ("OpenRLHF/OpenRLHF 1252; NovaSky-AI/SkyRL 1821", "Response length counts the tokens of tools."),
        ("NVIDIA-NeMo/RL 4042, 2163", "The column that says which rows were truncated is missing."),
        ("NVIDIA-NeMo/RL 3786", "A loss multiplier of 0 gets lost."),
        ("THUDM/slime 2260", "A resumed rollout gets its whole budget again."),
        (
            "NVIDIA-NeMo/RL 3940, 3980, 3858; PrimeIntellect-ai/prime-rl 1739, 2786, 2013; huggingface/trl 5927; "
            "StarsfieldAI/R1-V 91",
            "Placeholders and pixels disagree: resized, expanded twice, shifted, dropped, truncated, or sampled.",
        ),
        ("modelscope/ms-swift 6376", "The images of later turns never reach training."),
        ("huggingface/trl 6619", "The tiles of images are shuffled by another permutation than the rows."),
        ("NVIDIA-NeMo/RL 3631", "A text that spells the placeholder, without any image, is dropped."),
        ("sgl-project/sglang 25462; ai-dynamo/dynamo 8340", "Tensors are hashed without borders or dimensions."),
        ("vllm-project/vllm 23623", "bfloat16 is hashed by way of float16."),
        ("LMCache/LMCache 4783; raullenchai/Rapid-MLX 22", "A digest is cut to 16 bits, and ignores order and tail."),
        ("radixark/miles 1262", "A checksum needs a number of bytes that is divisible by four."),
        ("vllm-project/vllm 55203", "One video at two frame counts has one identity."),
        (
            "Ascend/TransferQueue 126, 160",
            "Where some keys are missing the answer has fewer rows; a key was cleared in between.",
        ),
        (
            "redai-studio/Relax 283",
            "A reader assumes dense columns, the queue returns jagged ones and scalars as (1,).",
        ),
        ("NVIDIA-NeMo/RL 3201", "A rollout that its environment masks trains all the same."),
        ("OpenRLHF/OpenRLHF 1334", "Rewards keep the precision of bfloat16."),
        ("radixark/miles 2800", "One rollout without a result takes its siblings along."),
        ("NVIDIA-NeMo/RL 1864", "A metric that needs two values is asked about one."),
        ("Ascend/TransferQueue 129", "A clear passes over keys under which nothing was found."),
        (
            "PrimeIntellect-ai/verifiers 900",
            "The last call is taken for the end of the answer, though a subagent made it.",
        ),
        ("verl-project/verl 6299", "Only the newest branch of a conversation can be continued."),
        ("verl-project/verl 6029", "Routes of a later request are taken for those of the whole sequence."),
        ("PrimeIntellect-ai/prime-rl 2408; ai-dynamo/dynamo 9651", "Routes travel in another encoding of bytes."),
        ("NVIDIA-NeMo/Gym 3593", "Rows that were filled in are measured like rows that ran."),
        ("huggingface/trl 6570", "Image tensors are indexed by row, though a row has several images."),
        ("NVIDIA-NeMo/RL 4001", "An answer without tokens keeps its weight in the loss."),
        ("NVIDIA-NeMo/RL 4188", "Siblings of one prompt share pixels that are not theirs."),
        ("rllm-org/rllm 352", "A turn that does not continue the earlier ones turns the whole mask to zeros."),
        ("rllm-org/rllm 575", "A response of several turns is cut to what one turn may have."),
        ("areal-project/AReaL 1569", "The weight version is read once more when the answer is there."),
        ("PrimeIntellect-ai/prime-rl 855", "Each turn of a rollout says whether the rollout is cut off."),
        ("TransferQueue/TransferQueue 159", "Samples can be cleared by the partition alone."),
        ("huggingface/trl 5785", "Two columns of one batch are padded on different sides."),
        ("THUDM/slime 2121", "A reward that is an integer decides the type of all."),
        ("microsoft/agent-lightning 559", "Rows with images reach the trainer without their pixels."),
        ("NVIDIA-NeMo/RL 3527", "The type of pixels is hard-coded, whatever the policy's precision is."),
        ("vllm-project/tpu-inference 3583", "The prompt's routes are read from the buffer of other layers, as zeros."),
        ("areal-project/AReaL 1419, 1673", "Prompt groups are cut by position, and a rollout is absent."),
        ("THUDM/slime 2230", "Groups of uneven size are normalized as one."),
        ("axon-rl/gem 113", "Advantages are normalized a second time, over all prompts."),
        ("NVIDIA-NeMo/RL 4161", "Values are divided by a deviation that is only what float32 rounded away."),
        (
            "radixark/miles 2378; THUDM/slime 2062",
            "A rollout that became several rows counts several times in its group.",
        ),
        ("PrimeIntellect-ai/prime-rl 2013", "A prompt is cut from the left, and the pixels of its images stay."),
        ("huggingface/trl 5904, 5881; Gabesarch/grounded-rl 23", "Tokens are cut inside an image; its pixels are not."),
        ("StarsfieldAI/R1-V 91; hiyouga/EasyR1 110", "The policy samples the token that stands for an image."),
    )
)
"""All of them, in the order of the contract's chapters."""
