//! Objects of which only the metadata is read: the API server sends nothing else of them. All kinds share one type,
//! so that lists and watches of them share their code.

use kube::api::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, Resource};

/// The metadata of an object of any kind.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

/// Reads the metadata of all objects of a kind.
pub(crate) fn all_metadata<K: Resource<DynamicType = ()>>(client: Client) -> Api<Metadata> {
    Api::all_with(client, &ApiResource::erase::<K>(&()))
}
