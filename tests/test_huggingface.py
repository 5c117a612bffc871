"""Masked language models of `transformers`: the seam shows what the model itself says, and each mistake is one line."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import random_tokens
from references import directional_mi
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizerFast,
    EsmConfig,
    EsmForMaskedLM,
    EsmTokenizer,
)

from mi_lib import huggingface
from mi_lib.ground_truth import ESTIMATORS, probe
from mi_lib.head import HeadConfig, MIHead
from mi_lib.huggingface import MaskedLM, load_masked_lm, special_tokens
from mi_lib.masked import marginals
from mi_lib.policies import HeadMI, MIGuided, Sequential
from mi_lib.samplers import decode

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "A", "T", "##s", "."]
AMINO_ACIDS = "LAGVSERTIDPKQNFYMHWC"  # ids 4 to 23, in this order
RESIDUES = ["<cls>", "<pad>", "<eos>", "<unk>", *AMINO_ACIDS, "X", "B", "U", "Z", "O", ".", "-", "<null_1>", "<mask>"]


def bert_tokenizer(folder, words=WORDS, **options):
    (folder / "vocab.txt").write_text("\n".join(words))
    return BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False, **options)


def bert_config(**options) -> BertConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, initializer_range=1.0, **sizes, **options)


def seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A BERT and an ESM-2 of a few weights each, saved as `transformers` does; neither needs a network."""
    bert, esm = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("esm")
    seeded(lambda: BertForMaskedLM(bert_config())).save_pretrained(bert)
    bert_tokenizer(bert).save_pretrained(bert)
    config = EsmConfig(
        vocab_size=len(RESIDUES),
        mask_token_id=32,
        pad_token_id=1,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        position_embedding_type="rotary",
        token_dropout=True,
        initializer_range=0.5,
    )
    seeded(lambda: EsmForMaskedLM(config)).save_pretrained(esm)
    (esm / "vocab.txt").write_text("\n".join(RESIDUES))
    EsmTokenizer(str(esm / "vocab.txt")).save_pretrained(esm)
    return {"bert": bert, "esm": esm}


@pytest.fixture(scope="module", params=["bert", "esm"])
def wrapped(request, folders):
    """The adapter, six sequences for it, and what goes before and after them."""
    vocab = ["A", "C", "T"] if request.param == "bert" else list(AMINO_ACIDS)
    model = load_masked_lm(folders[request.param], vocab)
    return model, random_tokens(model, 7, 4, n=6, seed=0), *{"bert": (2, 3), "esm": (0, 2)}[request.param]


def test_output_is_the_models_own_without_special_tokens(wrapped):
    model, tokens, before, after = wrapped
    ends = torch.ones(6, 1, dtype=torch.long)
    whole = torch.cat([before * ends, tokens, after * ends], 1)
    raw = model.model(input_ids=whole, attention_mask=torch.ones_like(whole), output_hidden_states=True)
    out = model(tokens)
    assert out.logits.dtype == out.hidden.dtype == torch.float32
    for column, token in enumerate(model.vocab.tolist()):
        torch.testing.assert_close(out.logits[..., column], raw.logits[:, 1:8, token])
    torch.testing.assert_close(out.hidden, raw.hidden_states[2][:, 1:8])
    assert out.hidden.shape == (6, 7, model.config.width)
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_a_sequence_does_not_depend_on_its_batch(wrapped):
    model, tokens, *_ = wrapped
    torch.testing.assert_close(model(tokens[2:3]).logits, model(tokens).logits[2:3], atol=1e-5, rtol=1e-5)


def test_ids_and_vocabulary(folders, wrapped):
    model, *_ = wrapped
    if model.config.width == 16:
        assert model.mask_id == 4 and model.vocab.tolist() == [6, 5, 7]  # in the order asked for
        assert load_masked_lm(folders["bert"]).vocab.tolist() == [5, 6, 7, 8, 9]
        assert load_masked_lm(folders["bert"], [7, "A"]).vocab.tolist() == [7, 6]
    else:
        assert model.mask_id == 32 and model.vocab.tolist() == list(range(4, 24))
        assert load_masked_lm(folders["esm"]).vocab.tolist() == list(range(4, 32))


def test_probing_a_head_and_decoding_work_on_it(wrapped):
    model, tokens, *_ = wrapped
    fast, plain = probe(model, tokens[0]), directional_mi(model, tokens[0])
    for name in ESTIMATORS:
        np.testing.assert_allclose(fast.of(name), plain[name], atol=3e-5)
    assert fast.kl.max() > 1e-3
    head = MIHead(HeadConfig(model.config.width, 8)).requires_grad_(False)
    for policy in (Sequential(), MIGuided(HeadMI(head), gamma=3.0)):
        done = decode(model, tokens, policy, temperature=1.0)
        assert torch.isin(done.tokens[tokens == model.mask_id], model.vocab).all()
        assert torch.equal(done.tokens[tokens != model.mask_id], tokens[tokens != model.mask_id])


def test_the_layer_is_an_argument(folders):
    tokens = torch.tensor([[4, 5, 6]])
    layers = [load_masked_lm(folders["bert"], layer=n) for n in (0, 1, 2, -1, -3)]
    hidden = [model(tokens).hidden for model in layers]
    assert torch.equal(hidden[2], hidden[3]) and torch.equal(hidden[0], hidden[4])
    assert not torch.allclose(hidden[0], hidden[1]) and not torch.allclose(hidden[1], hidden[2])
    changed = layers[0](torch.tensor([[4, 5, 7]])).hidden  # the embedding knows nothing of its neighbours
    torch.testing.assert_close(changed[:, :2], hidden[0][:, :2])
    with pytest.raises(ValueError, match="layer=3, expected -3 to 2: the embedding and 2 layers"):
        load_masked_lm(folders["bert"], layer=3)


def test_special_tokens_are_those_of_the_tokenizer(tmp_path):
    assert special_tokens(bert_tokenizer(tmp_path)) == ([2], [3])
    piece = SimpleNamespace(mask_token="<m>", mask_token_id=9, all_special_ids=[0, 2, 9])
    tokenizer = type("T", (SimpleNamespace,), {"__call__": lambda self, text: {"input_ids": [0, 5, 9, 2]}})
    assert special_tokens(tokenizer(**vars(piece))) == ([0], [2])  # 5: a word boundary, not a special token


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ([], r"vocab=\[\], expected at least one"),
        ([5, 10], "vocab=10, expected ids from 0 to 9"),
        ([-1], "vocab=-1, expected ids from 0 to 9"),
        (["C", "Q"], "vocab='Q', expected tokens of the tokenizer, which has 10"),
        ([5, 4], "vocab=4, expected no special token"),
        (["[CLS]"], r"vocab='\[CLS\]', expected no special token"),
        (["C", 5], "vocab=5, expected each id once"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(folders, vocab, message):
    with pytest.raises(ValueError, match=message):
        load_masked_lm(folders["bert"], vocab)


def test_a_tokenizer_without_mask_token_is_named(tmp_path):
    tokenizer = bert_tokenizer(tmp_path, mask_token=None)
    with pytest.raises(ValueError, match="BertTokenizerFast has no mask token: a masked model needs one"):
        MaskedLM(BertForMaskedLM(bert_config()), tokenizer)


def test_half_precision_weights_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model.dtype=torch.bfloat16, expected torch.float32.*model.float\(\)"):
        MaskedLM(BertForMaskedLM(bert_config()).bfloat16(), bert_tokenizer(tmp_path))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.full((3,), 4), r"tokens must be int64 of shape \(B, L\), got torch.int64 of shape \(3,\)"),
        (torch.full((1, 3), 4.0), r"tokens must be int64 .* got torch.float32"),
        (torch.tensor([[4, 10]]), "tokens hold the id 10, expected 0 to 9"),
        (torch.tensor([[4, -2]]), "tokens hold the id -2, expected 0 to 9"),
        (torch.full((1, 19), 4), "length=19, expected 1 to 18 tokens"),  # 20 positions, two of them cls and sep
        (torch.full((1, 0), 4), "length=0, expected 1 to 18 tokens"),
    ],
)
def test_wrong_tokens_are_named(folders, tokens, message):
    with pytest.raises(ValueError, match=message):
        load_masked_lm(folders["bert"])(tokens)


class Broken(nn.Module):
    """A model whose output is changed by ``damage``."""

    def __init__(self, model, damage):
        super().__init__()
        self.model, self.config, self.damage = model, model.config, damage

    def forward(self, **options):
        out = self.model(**options)
        self.damage(out)
        return out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: out.logits.mul_(torch.nan), "the model returned NaN logits"),
        (lambda out: setattr(out, "hidden_states", None), "Broken returned no hidden states, although output_hidden"),
        (
            lambda out: setattr(out, "logits", out.logits[:, 1:]),
            r"Broken returned logits of shape \(1, 4, 10\), expected \(1, 5, 10\)",
        ),
        (
            lambda out: setattr(out, "logits", out.logits[..., 1:]),
            r"Broken returned logits of shape \(1, 5, 9\), expected \(1, 5, 10\)",
        ),
    ],
)
def test_a_broken_model_is_named(tmp_path, damage, message):
    model = BertForMaskedLM(bert_config()).eval().requires_grad_(False)
    with pytest.raises(ValueError, match=message):
        marginals(MaskedLM(Broken(model, damage), bert_tokenizer(tmp_path)), torch.full((1, 3), 4))


def test_a_folder_that_holds_no_masked_model_is_named(tmp_path, folders):
    for name, message in (
        ("empty", "holds no masked language model"),
        ("headless", "lacks the weights 'cls.predictions"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        if name == "headless":  # `transformers` itself would make the head up
            BertModel(bert_config()).save_pretrained(folder)
            bert_tokenizer(folder).save_pretrained(folder)
        with pytest.raises(ValueError, match=message) as error:
            load_masked_lm(folder)
        assert str(folder) in str(error.value) and len(str(error.value).splitlines()) == 1


def test_pickled_weights_are_not_loaded(tmp_path):
    seeded(lambda: BertForMaskedLM(bert_config())).save_pretrained(tmp_path, safe_serialization=False)
    bert_tokenizer(tmp_path).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"transformers can load: .*model.safetensors"):
        load_masked_lm(tmp_path)


def test_without_network_one_message_comes_at_once(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface, "MaskedLM", None)  # not reached
    with pytest.raises(ConnectionError, match=r"model 'someone/some_model' is no folder, is not on this machine, and"):
        load_masked_lm("someone/some_model")
    with pytest.raises(ValueError, match="model='a/b/c', expected a folder with a saved model, or OWNER/NAME"):
        load_masked_lm("a/b/c")
