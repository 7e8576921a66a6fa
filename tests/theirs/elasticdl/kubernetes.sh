# The tutorials on a Kubernetes of this machine; sourced by `run`. What differs from the pages: images hold model_zoo alone, on the
# cluster's image of empty directories; programs have this machine's Python by further host paths of --volume; no registry is used.
ENGINE="" IMAGE=elasticdl:mnist_ps
cluster kubernetes theirs-elasticdl --nodes 1 --cores 16 --memory 16GiB
KUBECONFIG=$(dirname "$KUBECONFIG")/admin.kubeconfig
export KUBECONFIG TRAINMASTER_SITE=$WORK/site.yaml
HOST=""
for path in /usr /lib /lib64 /bin "$(python -c 'import sys; print(sys.base_prefix)')" "$ROOT" "$WORK"; do
  HOST+=";host_path=$path,mount_path=$path"
done

end_task() { # end_task JOB TASK: delete a pod of the task's role
  local pod
  pod=$(kubectl get pods -n default -o name | grep "$1" | grep -m1 "${2%:*}") && kubectl delete -n default "$pod" --wait=false
}
use_on_cluster() { ln -sfn "$WORK/$1" "$WORK/now"; } # images have it on their PATH
echo "engines: {kubernetes: {run_as: 0}}" > "$TRAINMASTER_SITE"

if [ ! -e "$WORK/image.tar" ]; then
  buildah pull -q docker-archive:"$(find ~/.cache/trainmaster/kubernetes-* -maxdepth 1 -name host.tar | head -1)" >&2
  rm -f Dockerfile
  tm elasticdl zoo init --base_image=localhost/trainmaster/host:1 --model_zoo=model_zoo >&2
  sed -i '/^RUN /d' Dockerfile # that image has neither a Python of its own nor a network
  echo "ENV PATH=$WORK/now/bin:/usr/bin:/bin" >> Dockerfile
  tm elasticdl zoo build --image=$IMAGE . >&2 || exit 1
  buildah push -q localhost/$IMAGE oci-archive:"$WORK/image.tar":docker.io/library/$IMAGE >&2 || exit 1
fi
tm image load --name theirs-elasticdl "$WORK/image.tar" >&2 || exit 1
tutorials tutorials /data "host_path=$DATA,mount_path=/data$HOST" $IMAGE

kubectl apply -f - >&2 << C
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: low}
value: 1000
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: fileserver}
spec:
  {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], hostPath: {path: $DATA}, storageClassName: "",
   claimRef: {name: fileserver-claim, namespace: default}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: fileserver-claim, namespace: default}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}, storageClassName: "", volumeName: fileserver}
C
use_on_cluster current
two="cpu=2,memory=2048Mi"
for page in elasticdl_cloud elasticdl_on_prem_cluster; do
  play tutorials/$page worker:0 --image_name=$IMAGE "${seed[@]}" --training_data=/data/mnist/train --validation_data=/data/mnist/test \
    --num_epochs=5 --master_resource_request=$two --master_resource_limit=$two --master_pod_priority=high --worker_resource_request=$two \
    --worker_resource_limit=$two --worker_pod_priority=low --ps_resource_request=$two --ps_resource_limit=$two --ps_pod_priority=high \
    --minibatch_size=64 --num_minibatches_per_task=64 --num_ps_pods=2 --num_workers=4 --evaluation_steps=200 --grads_to_wait=1 \
    --job_name=test-mnist --log_level=INFO --image_pull_policy=Never --volume="mount_path=/data,claim_name=fileserver-claim$HOST" \
    --distribution_strategy=ParameterServerStrategy
done
