import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.Function;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/**
 * Apache Kafka's own Java clients, driven by lines of JSON on standard input and answering in lines of JSON.
 *
 * <p>Each line is {"id", "do", "bootstrap", ...}; each is done on a thread of its own, so that several may be under way.
 * The answer is {"id", "answer"}; a future that succeeded is {"ok": value} in it, one that failed {"error": simple name
 * of the exception, "message"}.
 *
 * <p>Run as a source: java -cp 'libs/*' Client.java
 */
public class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Admin> ADMINS = new ConcurrentHashMap<>();
    private static final Set<String> STOPPED = ConcurrentHashMap.newKeySet();
    private static final long PATIENCE = 60;

    private interface Command {
        Object run(JsonNode call) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        commands();
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JsonNode call = JSON.readTree(line);
            pool.submit(() -> {
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("id", call.get("id").asLong());
                try {
                    row.put("answer", COMMANDS.get(call.get("do").asText()).run(call));
                } catch (Throwable problem) {
                    row.put("answer", failed(problem));
                }
                synchronized (out) {
                    out.println(JSON.writeValueAsString(row));
                }
                return null;
            });
        }
        pool.shutdownNow();
        ADMINS.values().forEach(admin -> admin.close(Duration.ofSeconds(5)));
        System.exit(0);
    }

    // Values

    private static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) made.put((String) pairs[i], pairs[i + 1]);
        return made;
    }

    private static Map<String, Object> failed(Throwable problem) {
        Throwable cause = problem instanceof ExecutionException && problem.getCause() != null ? problem.getCause() : problem;
        return map("error", cause.getClass().getSimpleName(), "message", String.valueOf(cause.getMessage()));
    }

    private static <T> Object told(Future<T> future, Function<T, Object> show) {
        try {
            return map("ok", show.apply(future.get(PATIENCE, TimeUnit.SECONDS)));
        } catch (Exception problem) {
            return failed(problem);
        }
    }

    private static <K, T> Map<String, Object> each(Map<K, ? extends Future<T>> futures, Function<T, Object> show) {
        Map<String, Object> rows = new TreeMap<>();
        futures.forEach((key, future) -> rows.put(String.valueOf(key), told(future, show)));
        return rows;
    }

    private static Properties settings(JsonNode call, String... defaults) {
        Properties made = new Properties();
        made.put("bootstrap.servers", call.get("bootstrap").asText());
        for (int i = 0; i < defaults.length; i += 2) made.put(defaults[i], defaults[i + 1]);
        if (call.has("config")) call.get("config").properties().forEach(e -> made.put(e.getKey(), e.getValue().asText()));
        return made;
    }

    private static Admin admin(JsonNode call) {
        String bootstrap = call.get("bootstrap").asText();
        ADMINS.forEach((other, admin) -> {
            if (!other.equals(bootstrap) && ADMINS.remove(other, admin)) admin.close(Duration.ofSeconds(1));
        });
        return ADMINS.computeIfAbsent(bootstrap, any -> Admin.create(settings(call)));
    }

    private static <O extends AbstractOptions<O>> O timed(O options, JsonNode call) {
        return call.has("timeoutMs") ? options.timeoutMs(call.get("timeoutMs").asInt()) : options;
    }

    private static List<String> strings(JsonNode array) {
        List<String> made = new ArrayList<>();
        if (array != null) array.forEach(one -> made.add(one.asText()));
        return made;
    }

    private static List<Integer> integers(JsonNode array) {
        List<Integer> made = new ArrayList<>();
        if (array != null) array.forEach(one -> made.add(one.asInt()));
        return made;
    }

    private static TopicPartition partition(JsonNode row) {
        return new TopicPartition(row.get(0).asText(), row.get(1).asInt());
    }

    private static TopicPartitionReplica replica(JsonNode row) {
        return new TopicPartitionReplica(row.get(0).asText(), row.get(1).asInt(), row.get(2).asInt());
    }

    private static List<TopicPartition> partitions(JsonNode array) {
        List<TopicPartition> made = new ArrayList<>();
        if (array != null) array.forEach(row -> made.add(partition(row)));
        return made;
    }

    private static OffsetSpec spec(String named) {
        switch (named) {
            case "earliest": return OffsetSpec.earliest();
            case "latest": return OffsetSpec.latest();
            case "max_timestamp": return OffsetSpec.maxTimestamp();
            case "earliest_local": return OffsetSpec.earliestLocal();
            case "latest_tiered": return OffsetSpec.latestTiered();
            case "earliest_pending_upload": return OffsetSpec.earliestPendingUpload();
            default: return OffsetSpec.forTimestamp(Long.parseLong(named));
        }
    }

    private static Object shown(TopicDescription topic) {
        List<Object> rows = new ArrayList<>();
        topic.partitions().forEach(row -> rows.add(map(
            "partition", row.partition(), "leader", row.leader() == null ? null : row.leader().id(),
            "replicas", row.replicas().stream().map(Node::id).toList(), "isr", row.isr().stream().map(Node::id).toList())));
        return map("name", topic.name(), "id", topic.topicId().toString(), "internal", topic.isInternal(), "partitions", rows);
    }

    private static Object shown(Map<String, LogDirDescription> directories) {
        Map<String, Object> rows = new TreeMap<>();
        directories.forEach((path, row) -> {
            Map<String, Object> replicas = new TreeMap<>();
            row.replicaInfos().forEach((tp, info) -> replicas.computeIfAbsent(tp.toString(), any ->
                map("size", info.size(), "lag", info.offsetLag(), "future", info.isFuture())));
            rows.put(path, map(
                "error", row.error() == null ? null : row.error().getClass().getSimpleName(), "replicas", replicas,
                "total", row.totalBytes().isPresent() ? row.totalBytes().getAsLong() : null,
                "usable", row.usableBytes().isPresent() ? row.usableBytes().getAsLong() : null,
                "cordoned", row.isCordoned()));
        });
        return rows;
    }

    private static Object shown(Config config) {
        Map<String, Object> rows = new TreeMap<>();
        config.entries().forEach(entry -> rows.put(entry.name(), map(
            "value", entry.value(), "source", entry.source().name(), "type", String.valueOf(entry.type()), "readOnly", entry.isReadOnly(),
            "sensitive", entry.isSensitive(), "documented", entry.documentation() != null && !entry.documentation().isEmpty(),
            "synonyms", entry.synonyms().stream().map(s -> List.of(s.name(), String.valueOf(s.value()), s.source().name())).toList())));
        return rows;
    }

    private static ConfigResource resource(JsonNode row) {
        return new ConfigResource(ConfigResource.Type.valueOf(row.get(0).asText()), row.get(1).asText());
    }

    // Commands

    private static void commands() {
        logDirs();
        topics();
        groups();
        COMMANDS.put("produce", Client::produce);
        COMMANDS.put("consume", Client::consume);
        COMMANDS.put("transaction", call -> {
            try (var producer = new KafkaProducer<>(settings(call), new StringSerializer(), new StringSerializer())) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(call.get("topic").asText(), "in a transaction")).get();
                producer.commitTransaction();
            }
            return map("ok", null);
        });
        COMMANDS.put("stop", call -> STOPPED.add(call.get("name").asText()));
    }

    private static void logDirs() {
        COMMANDS.put("describeLogDirs", call -> each(
            admin(call).describeLogDirs(integers(call.get("brokers")), timed(new DescribeLogDirsOptions(), call)).descriptions(),
            Client::shown));
        COMMANDS.put("describeReplicaLogDirs", call -> {
            List<TopicPartitionReplica> replicas = new ArrayList<>();
            call.get("replicas").forEach(row -> replicas.add(replica(row)));
            DescribeReplicaLogDirsOptions options = timed(new DescribeReplicaLogDirsOptions(), call);
            return each(admin(call).describeReplicaLogDirs(replicas, options).values(), row -> map(
                "current", row.getCurrentReplicaLogDir(), "lag", row.getCurrentReplicaOffsetLag(),
                "future", row.getFutureReplicaLogDir(), "futureLag", row.getFutureReplicaOffsetLag()));
        });
        COMMANDS.put("alterReplicaLogDirs", call -> {
            Map<TopicPartitionReplica, String> wanted = new LinkedHashMap<>();
            call.get("wanted").forEach(row -> wanted.put(replica(row), row.get(3).asText()));
            AlterReplicaLogDirsResult done = admin(call).alterReplicaLogDirs(wanted, timed(new AlterReplicaLogDirsOptions(), call));
            return map("values", each(done.values(), nothing -> null), "all", told(done.all(), nothing -> null));
        });
    }

    private static void topics() {
        COMMANDS.put("createTopics", call -> {
            List<NewTopic> wanted = new ArrayList<>();
            call.get("topics").forEach(row -> {
                NewTopic topic;
                if (row.has("assignment")) {
                    Map<Integer, List<Integer>> chosen = new TreeMap<>();
                    row.get("assignment").properties().forEach(e -> chosen.put(Integer.parseInt(e.getKey()), integers(e.getValue())));
                    topic = new NewTopic(row.get("name").asText(), chosen);
                } else {
                    topic = new NewTopic(row.get("name").asText(),
                        row.has("partitions") ? Optional.of(row.get("partitions").asInt()) : Optional.empty(),
                        row.has("replication") ? Optional.of((short) row.get("replication").asInt()) : Optional.empty());
                }
                if (row.has("configs")) {
                    Map<String, String> configs = new HashMap<>();
                    row.get("configs").properties().forEach(e -> configs.put(e.getKey(), e.getValue().asText()));
                    topic.configs(configs);
                }
                wanted.add(topic);
            });
            boolean only = call.has("validateOnly") && call.get("validateOnly").asBoolean();
            CreateTopicsResult done = admin(call).createTopics(wanted, timed(new CreateTopicsOptions().validateOnly(only), call));
            Map<String, Object> rows = new TreeMap<>();
            done.values().forEach((name, future) -> rows.put(name, told(future, nothing -> map(
                "id", done.topicId(name).toCompletionStage().toCompletableFuture().join().toString(),
                "partitions", done.numPartitions(name).toCompletionStage().toCompletableFuture().join(),
                "replication", done.replicationFactor(name).toCompletionStage().toCompletableFuture().join(),
                "configs", shown(done.config(name).toCompletionStage().toCompletableFuture().join())))));
            return rows;
        });
        COMMANDS.put("deleteTopics", call -> each(
            admin(call).deleteTopics(TopicCollection.ofTopicNames(strings(call.get("topics")))).topicNameValues(), nothing -> null));
        COMMANDS.put("listTopics", call -> told(admin(call).listTopics().names(), TreeSet::new));
        COMMANDS.put("describeTopics", call -> {
            DescribeTopicsOptions options = timed(new DescribeTopicsOptions(), call);
            if (call.has("limit")) options.partitionSizeLimitPerResponse(call.get("limit").asInt());
            if (!call.has("ids")) {
                TopicCollection names = TopicCollection.ofTopicNames(strings(call.get("topics")));
                return each(admin(call).describeTopics(names, options).topicNameValues(), Client::shown);
            }
            List<Uuid> ids = strings(call.get("ids")).stream().map(Uuid::fromString).toList();
            return each(admin(call).describeTopics(TopicCollection.ofTopicIds(ids), options).topicIdValues(), Client::shown);
        });
        COMMANDS.put("createPartitions", call -> {
            Map<String, NewPartitions> wanted = new HashMap<>();
            call.get("counts").properties().forEach(e -> wanted.put(e.getKey(), NewPartitions.increaseTo(e.getValue().asInt())));
            return each(admin(call).createPartitions(wanted, timed(new CreatePartitionsOptions(), call)).values(), nothing -> null);
        });
        COMMANDS.put("listOffsets", call -> {
            Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
            call.get("wanted").forEach(row -> wanted.put(partition(row), spec(row.get(2).asText())));
            ListOffsetsResult done = admin(call).listOffsets(wanted, timed(new ListOffsetsOptions(), call));
            Map<String, Object> rows = new TreeMap<>();
            wanted.keySet().forEach(tp -> rows.put(tp.toString(), told(done.partitionResult(tp), found -> map(
                "offset", found.offset(), "timestamp", found.timestamp(), "epoch", found.leaderEpoch().orElse(null)))));
            return rows;
        });
        COMMANDS.put("deleteRecords", call -> {
            Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
            call.get("wanted").forEach(row -> wanted.put(partition(row), RecordsToDelete.beforeOffset(row.get(2).asLong())));
            return each(admin(call).deleteRecords(wanted).lowWatermarks(), DeletedRecords::lowWatermark);
        });
        COMMANDS.put("describeCluster", call -> {
            DescribeClusterResult found = admin(call).describeCluster(timed(new DescribeClusterOptions(), call));
            return map(
                "id", found.clusterId().get(), "controller", found.controller().get().id(),
                "nodes", found.nodes().get().stream().map(n -> List.of(n.id(), n.host() + ":" + n.port())).toList());
        });
        COMMANDS.put("describeQuorum", call -> told(admin(call).describeMetadataQuorum().quorumInfo(), q -> q.leaderId()));
        COMMANDS.put("describeQuotas", call -> told(
            admin(call).describeClientQuotas(org.apache.kafka.common.quota.ClientQuotaFilter.all()).entities(), Map::size));
        COMMANDS.put("listTransactions", call -> told(admin(call).listTransactions().all(), Collection::size));
        COMMANDS.put("describeAcls", call -> told(
            admin(call).describeAcls(org.apache.kafka.common.acl.AclBindingFilter.ANY).values(), Collection::size));
        COMMANDS.put("describeFeatures", call -> told(admin(call).describeFeatures().featureMetadata(), found ->
            new TreeSet<>(found.finalizedFeatures().keySet())));
        COMMANDS.put("describeConfigs", call -> {
            List<ConfigResource> wanted = new ArrayList<>();
            call.get("resources").forEach(row -> wanted.add(resource(row)));
            DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
            Map<String, Object> rows = new TreeMap<>();
            admin(call).describeConfigs(wanted, options).values().forEach((key, future) ->
                rows.put(key.type() + " " + key.name(), told(future, Client::shown)));
            return rows;
        });
        COMMANDS.put("alterConfigs", call -> {
            Map<ConfigResource, Collection<AlterConfigOp>> wanted = new LinkedHashMap<>();
            call.get("changes").forEach(row -> wanted.computeIfAbsent(resource(row), any -> new ArrayList<>()).add(new AlterConfigOp(
                new ConfigEntry(row.get(3).asText(), row.get(4).isNull() ? null : row.get(4).asText()),
                AlterConfigOp.OpType.valueOf(row.get(2).asText()))));
            Map<String, Object> rows = new TreeMap<>();
            admin(call).incrementalAlterConfigs(wanted).values().forEach((key, future) ->
                rows.put(key.type() + " " + key.name(), told(future, nothing -> null)));
            return rows;
        });
        COMMANDS.put("alterPartitionReassignments", call -> {
            Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
            call.get("wanted").forEach(row -> wanted.put(partition(row), row.get(2).isNull()
                ? Optional.empty() : Optional.of(new NewPartitionReassignment(integers(row.get(2))))));
            return each(admin(call).alterPartitionReassignments(wanted).values(), nothing -> null);
        });
        COMMANDS.put("listPartitionReassignments", call -> told(
            admin(call).listPartitionReassignments().reassignments(), found -> found.keySet().stream().map(Object::toString).toList()));
        COMMANDS.put("describeReassignments", call -> told(
            admin(call).listPartitionReassignments(new HashSet<>(partitions(call.get("partitions")))).reassignments(), found -> {
                Map<String, Object> rows = new TreeMap<>();
                found.forEach((tp, row) -> rows.put(tp.toString(), List.of(row.replicas(), row.addingReplicas(), row.removingReplicas())));
                return rows;
            }));
        COMMANDS.put("electLeaders", call -> told(
            admin(call).electLeaders(ElectionType.valueOf(call.get("type").asText()), new HashSet<>(partitions(call.get("partitions")))).partitions(),
            found -> {
                Map<String, Object> rows = new TreeMap<>();
                found.forEach((tp, problem) -> rows.put(tp.toString(), problem.map(p -> p.getClass().getSimpleName()).orElse(null)));
                return rows;
            }));
    }

    private static void groups() {
        COMMANDS.put("listGroups", call -> told(admin(call).listGroups().all(), found -> {
            Map<String, Object> rows = new TreeMap<>();
            found.forEach(g -> rows.put(g.groupId(), map(
                "type", g.type().map(Object::toString).orElse(null), "state", g.groupState().map(Object::toString).orElse(null),
                "protocol", g.protocol())));
            return rows;
        }));
        COMMANDS.put("describeGroups", call -> each(admin(call).describeConsumerGroups(strings(call.get("groups"))).describedGroups(), g -> map(
            "state", g.groupState().toString(), "assignor", g.partitionAssignor(), "coordinator", g.coordinator().id(),
            "members", g.members().stream().map(m -> map("client", m.clientId(), "instance", m.groupInstanceId().orElse(null),
                "partitions", m.assignment().topicPartitions().stream().map(Object::toString).sorted().toList())).toList())));
        COMMANDS.put("groupOffsets", call -> told(
            admin(call).listConsumerGroupOffsets(call.get("group").asText()).partitionsToOffsetAndMetadata(), found -> {
                Map<String, Object> rows = new TreeMap<>();
                found.forEach((tp, row) -> rows.put(tp.toString(), row == null ? null : row.offset()));
                return rows;
            }));
        COMMANDS.put("alterGroupOffsets", call -> {
            Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
            call.get("wanted").forEach(row -> wanted.put(partition(row), new OffsetAndMetadata(row.get(2).asLong())));
            return told(admin(call).alterConsumerGroupOffsets(call.get("group").asText(), wanted).all(), nothing -> null);
        });
        COMMANDS.put("deleteGroupOffsets", call -> told(admin(call).deleteConsumerGroupOffsets(
            call.get("group").asText(), new HashSet<>(partitions(call.get("partitions")))).all(), nothing -> null));
        COMMANDS.put("deleteGroups", call -> each(
            admin(call).deleteConsumerGroups(strings(call.get("groups"))).deletedGroups(), nothing -> null));
    }

    /** Sends "count" records with the values PREFIX-0, PREFIX-1, ...; the acknowledged [partition, offset, value], failures. */
    private static Object produce(JsonNode call) throws Exception {
        String topic = call.get("topic").asText();
        String prefix = call.get("prefix").asText();
        Integer to = call.has("partition") ? call.get("partition").asInt() : null;
        Long time = call.has("timestamp") ? call.get("timestamp").asLong() : null;
        long pause = call.has("pauseMs") ? call.get("pauseMs").asLong() : 0;
        List<Object> acknowledged = new ArrayList<>();
        List<Object> failures = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings(call), new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            int count = call.get("count").asInt();
            for (int i = 0; i < count; i++) {
                var key = call.has("keys") ? "key-" + i % call.get("keys").asInt() : null;
                Long at = time == null ? null : Long.valueOf(time + i);
                sent.add(producer.send(new ProducerRecord<>(topic, to, at, key, prefix + "-" + i)));
                if (pause > 0) Thread.sleep(pause);
            }
            for (int i = 0; i < count; i++) {
                try {
                    RecordMetadata row = sent.get(i).get(PATIENCE, TimeUnit.SECONDS);
                    acknowledged.add(List.of(row.partition(), row.offset(), prefix + "-" + i));
                } catch (ExecutionException problem) {
                    failures.add(failed(problem));
                }
            }
        }
        return map("acknowledged", acknowledged, "failures", failures);
    }

    /** Reads until "count" records have come, "seconds" are over or "name" is stopped; [partition, offset, value], with "topics" their topic before. */
    private static Object consume(JsonNode call) throws Exception {
        List<Object> records = new ArrayList<>();
        Set<String> assigned = new TreeSet<>();
        Properties settings = settings(call, "auto.offset.reset", "earliest", "enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (call.has("assign")) {
                consumer.assign(partitions(call.get("assign")));
                if (call.has("seek")) call.get("seek").forEach(row -> consumer.seek(partition(row), row.get(2).asLong()));
            } else {
                consumer.subscribe(strings(call.get("subscribe")));
            }
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos((long) (call.get("seconds").asDouble() * 1000));
            int count = call.get("count").asInt();
            String name = call.has("name") ? call.get("name").asText() : "";
            while (records.size() < count && System.nanoTime() < until && !STOPPED.contains(name)) {
                consumer.poll(Duration.ofMillis(200)).forEach(row -> records.add(call.has("topics")
                    ? List.of(row.topic(), row.partition(), row.offset(), row.value())
                    : List.of(row.partition(), row.offset(), row.value())));
                consumer.assignment().forEach(tp -> assigned.add(tp.toString()));
            }
            Map<String, Object> positions = new TreeMap<>();
            for (TopicPartition tp : consumer.assignment()) positions.put(tp.toString(), consumer.position(tp));
            if (call.has("commit")) consumer.commitSync();
            Map<String, Object> ends = new TreeMap<>();
            consumer.endOffsets(consumer.assignment()).forEach((tp, offset) -> ends.put(tp.toString(), offset));
            return map("records", records, "assigned", assigned, "positions", positions, "ends", ends);
        }
    }
}
