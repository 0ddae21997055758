"""What one training step asks of a device, counted once and independent of any mesh.

A model is a prologue, equal blocks, and an epilogue. Each of these is a `Part`: its
parameters, and what it computes, moves and keeps for one token.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """A product of the tokens with a weight: `[tokens, inputs] @ [inputs, outputs]`.

    Args:
        inputs: Width of what goes in.
        outputs: Width of what comes out.
        split: What tensor parallel divides: `outputs` (a column-parallel weight),
            `inputs` (a row-parallel one), or empty for a weight that it leaves whole.
        count: Products of this shape in the part.
        tokens: Share of the tokens that each of them sees; a mixture of experts sends
            each token to a few of them.

    Example:
        >>> Matmul(inputs=64, outputs=256, split="outputs").flops_per_token
        32768
    """

    inputs: int
    outputs: int
    split: str = ""
    count: int = 1
    tokens: float = 1.0

    @property
    def flops_per_token(self) -> float:
        """Returns the operations of the forward pass for one token of the batch."""
        flops = 2 * self.inputs * self.outputs * self.count
        return flops if self.tokens == 1 else flops * self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A block, or what comes before the first one or after the last.

    Elements are counted instead of bytes, since a precision is an option of the step.
    Those inside a tensor-parallel region are divided by its degree; those outside only
    with sequence parallel.

    Args:
        parameters: All parameters.
        split_parameters: Of these, what tensor parallel divides.
        expert_parameters: Of these, what expert parallel divides.
        matmuls: The products with weights.
        attention_flops: Forward operations per token of attention's own two products,
            as if every token saw the whole sequence: what model FLOPs count.
        attention_work: The same for the keys that are really visited.
        score_elements: Attention scores per token, which unfused attention writes.
        key_elements: Keys and values per token, which ranks that share a sequence
            exchange.
        outer_elements: Read and written per token by all that is neither a product nor
            attention, outside tensor-parallel regions (norms, residual sums).
        inner_elements: The same inside them (activation functions, rotations).
        unfused_outer: What a program without fused kernels moves besides, outside.
        unfused_inner: The same inside.
        outer_saved: Kept per token for the backward, outside tensor-parallel regions.
        inner_saved: The same inside them.
        regions: Tensor-parallel regions, each with one reduction in the forward pass.
        exchanges: Exchanges of tokens between experts in the forward pass.
        kernels: Kernels launched by a forward pass.
        routed_elements: Elements per token that an exchange between experts moves.
    """

    parameters: int = 0
    split_parameters: int = 0
    expert_parameters: int = 0
    matmuls: tuple[Matmul, ...] = ()
    attention_flops: float = 0.0
    attention_work: float = 0.0
    score_elements: float = 0.0
    key_elements: float = 0.0
    outer_elements: float = 0.0
    inner_elements: float = 0.0
    unfused_outer: float = 0.0
    unfused_inner: float = 0.0
    outer_saved: float = 0.0
    inner_saved: float = 0.0
    regions: int = 0
    exchanges: int = 0
    kernels: int = 0
    routed_elements: float = 0.0

    @property
    def matmul_flops(self) -> float:
        """Returns the forward operations per token of the products with weights."""
        return sum(matmul.flops_per_token for matmul in self.matmuls)

    @property
    def flops(self) -> float:
        """Returns the forward operations per token, as model FLOPs count them."""
        return self.matmul_flops + self.attention_flops


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelProfile:
    """A model, as far as the cost of training it goes.

    Args:
        name: What to call it.
        num_blocks: How many equal blocks it has.
        block: One of them.
        prologue: What runs before the first block.
        epilogue: What runs after the last, the loss included.
        width: Elements per token that go from one block to the next.
        sequence: Tokens of a sample.
        vocabulary: Width of the logits; 0 for none.
        tied_parameters: Parameters counted in both the prologue and the epilogue, which
            are one.
        heads: What tensor parallel must divide: attention heads, key-value heads...
        num_experts: Experts of a block; 0 for none.

    Example:
        >>> part = Part(parameters=10, matmuls=(Matmul(inputs=2, outputs=5),))
        >>> profile = ModelProfile(name="m", num_blocks=3, block=part, width=2,
        ...     sequence=4)
        >>> profile.num_parameters, profile.flops_per_token
        (30, 180.0)
    """

    name: str
    num_blocks: int
    block: Part
    prologue: Part = field(default_factory=Part)
    epilogue: Part = field(default_factory=Part)
    width: int
    sequence: int
    vocabulary: int = 0
    tied_parameters: int = 0
    heads: tuple[int, ...] = ()
    num_experts: int = 0

    @property
    def num_parameters(self) -> int:
        """Returns the number of parameters, tied ones once."""
        ends = self.prologue.parameters + self.epilogue.parameters
        return self.num_blocks * self.block.parameters + ends - self.tied_parameters

    @property
    def flops_per_token(self) -> float:
        """Returns the model FLOPs of a forward and a backward, for one token.

        Recomputation is not counted, and attention is counted in full.
        """
        ends = self.prologue.flops + self.epilogue.flops
        return 3 * (self.num_blocks * self.block.flops + ends)
