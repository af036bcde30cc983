# SPDX-License-Identifier: Apache-2.0
"""Models, their layers, and base classes for your own: `Model` and, for clicks, `ClickModel`."""

from sparsetrain import runtime as _runtime  # noqa: F401
from sparsetrain.models.arguments import options_of as options_of
from sparsetrain.models.attention import Positions as Positions
from sparsetrain.models.attention import SelfAttention as SelfAttention
from sparsetrain.models.attention import TransformerBlock as TransformerBlock
from sparsetrain.models.autoint import AutoInt as AutoInt
from sparsetrain.models.autoint import FieldAttention as FieldAttention
from sparsetrain.models.bert4rec import BERT4Rec as BERT4Rec
from sparsetrain.models.click_model import ClickModel as ClickModel
from sparsetrain.models.dcn import DCN as DCN
from sparsetrain.models.dcn import DCNv2 as DCNv2
from sparsetrain.models.deepfm import DeepFM as DeepFM
from sparsetrain.models.din import DIN as DIN
from sparsetrain.models.dlrm import DLRM as DLRM
from sparsetrain.models.ease import EASE as EASE
from sparsetrain.models.esmm import ESMM as ESMM
from sparsetrain.models.features import Dense as Dense
from sparsetrain.models.features import Ids as Ids
from sparsetrain.models.features import Sequence as Sequence
from sparsetrain.models.finalmlp import BilinearFusion as BilinearFusion
from sparsetrain.models.finalmlp import FinalMLP as FinalMLP
from sparsetrain.models.fm import FM as FM
from sparsetrain.models.fm import fm_sum as fm_sum
from sparsetrain.models.fwfm import FwFM as FwFM
from sparsetrain.models.hstu import HSTU as HSTU
from sparsetrain.models.interaction import CrossInteraction as CrossInteraction
from sparsetrain.models.interaction import dot_interaction as dot_interaction
from sparsetrain.models.interaction.cross import CrossNetwork as CrossNetwork
from sparsetrain.models.item_knn import ItemKNN as ItemKNN
from sparsetrain.models.layers import MLP as MLP
from sparsetrain.models.layers import BatchNorm as BatchNorm
from sparsetrain.models.layers import Dropout as Dropout
from sparsetrain.models.lightgcn import LightGCN as LightGCN
from sparsetrain.models.lr import LR as LR
from sparsetrain.models.matrix_factorization import BPR as BPR
from sparsetrain.models.matrix_factorization import MatrixFactorization as MatrixFactorization
from sparsetrain.models.mmoe import MMoE as MMoE
from sparsetrain.models.model import Model as Model
from sparsetrain.models.popularity import Pop as Pop
from sparsetrain.models.ranking_model import RankingModel as RankingModel
from sparsetrain.models.sasrec import SASRec as SASRec
from sparsetrain.models.two_towers import TwoTowers as TwoTowers
from sparsetrain.models.wide_deep import WideDeep as WideDeep
from sparsetrain.models.xdeepfm import CIN as CIN
from sparsetrain.models.xdeepfm import XDeepFM as XDeepFM
from sparsetrain.system.exports import public_names as _public_names

# Kind in a saved run -> class. Loading constructs only these classes.
MODELS: dict[str, type[Model]] = {
    model.kind: model
    for model in (
        *(LR, FM, FwFM, WideDeep, DeepFM, DCN, DCNv2, XDeepFM, AutoInt, FinalMLP, DLRM, MMoE, ESMM),
        *(DIN, MatrixFactorization, BPR, LightGCN, TwoTowers, SASRec, HSTU, BERT4Rec),
        *(Pop, ItemKNN, EASE),
    )
}


def kind_of(name: str) -> str:
    """Return the key of `MODELS` that a spelling means, such as "wide_deep" or "WideDeep"."""
    kinds = {_letters(n): kind for kind, cls in MODELS.items() for n in (cls.__name__, kind)}
    return kinds.get(_letters(name), name)


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


__all__, __dir__ = _public_names(globals(), "kind_of", "options_of")
