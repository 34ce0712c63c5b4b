import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/** Listeners in transactions that fail once on some records, and always on others, which go to a dead-letter topic. */
@Configuration
@EnableKafka
public class SpringJob {
    static String bootstrap;
    static final Set<String> FAILED_BEFORE = ConcurrentHashMap.newKeySet();

    static Map<String, Object> settings() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        for (String side : new String[] {"key", "value"}) {
            settings.put(side + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put(side + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("max.poll.records", 50);
        settings.put("session.timeout.ms", 6000);
        settings.put("heartbeat.interval.ms", 1000);
        return settings;
    }

    @Bean
    ProducerFactory<String, String> producers() {
        DefaultKafkaProducerFactory<String, String> factory = new DefaultKafkaProducerFactory<>(settings());
        factory.setTransactionIdPrefix("spring-");
        return factory;
    }

    @Bean
    KafkaTemplate<String, String> template(ProducerFactory<String, String> producers) {
        return new KafkaTemplate<>(producers);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
            ProducerFactory<String, String> producers, KafkaTemplate<String, String> template) {
        ConcurrentKafkaListenerContainerFactory<String, String> factory = new ConcurrentKafkaListenerContainerFactory<>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(settings()));
        factory.setConcurrency(2);
        factory.getContainerProperties().setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        DeadLetterPublishingRecoverer dead = new DeadLetterPublishingRecoverer(
            template, (record, failure) -> new TopicPartition(record.topic() + "-dead", record.partition()));
        factory.setAfterRollbackProcessor(
            new DefaultAfterRollbackProcessor<>((record, failure) -> dead.accept(record, failure),
                new FixedBackOff(0, 2), template, true));
        return factory;
    }

    @Bean
    Listener listener(KafkaTemplate<String, String> template) {
        return new Listener(template);
    }

    static class Listener {
        private final KafkaTemplate<String, String> template;

        Listener(KafkaTemplate<String, String> template) {
            this.template = template;
        }

        @KafkaListener(id = "spring", topics = "spring-in")
        public void listen(ConsumerRecord<String, String> record) {
            int number = Integer.parseInt(record.value());
            template.send("spring-out", record.partition(), record.key(), record.value());
            if (number % 300 == 7 || number % 100 == 3 && FAILED_BEFORE.add(record.value())) {
                throw new IllegalStateException("on purpose: " + number);
            }
        }
    }

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        new AnnotationConfigApplicationContext(SpringJob.class);
        System.out.println("listening");
    }
}
